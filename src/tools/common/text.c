/* Continues texts, and prints their tokens. */
#include "tools/common/text.h"

#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/memory.h"
#include "tools/common/program.h"

static bool ends(const moert_text *text, int32_t token) {
    for (size_t i = 0; i < text->stops; i++)
        if (text->stop[i] == token)
            return true;
    return false;
}

static void print(const moert_context *context, const moert_text *text, bool first, int token) {
    const bool shows = token >= 32 || token == '\n' || token == '\t';
    if (text->bytes)
        moert_program_say(context, "%c", shows ? token : '?');
    else
        moert_program_say(context, "%s%d", first ? "" : " ", token);
}

moert_status moert_text_continue(moert_context *context, moert_generation *generation,
                                 const moert_text *text, moert_text_times *times) {
    const uint64_t began = moert_clock_ns();
    bool ended = false;
    *times = (moert_text_times){.made = 0};
    MOERT_TRY(moert_comm_agree(moert_context_comm(context),
                               moert_generation_begin(generation, text->tokens, text->count)));
    while (times->made < text->most && !ended) {
        int32_t token;
        MOERT_TRY(moert_generation_next(generation, &token));
        ended = ends(text, token);
        print(context, text, times->made == 0, token);
        const double seconds = 1e-9 * (double)(moert_clock_ns() - began);
        if (times->made++ == 0)
            times->first_s = seconds;
        times->rest_s = seconds - times->first_s;
    }
    moert_program_say(context, "\n");
    return MOERT_OK;
}

moert_status moert_text_bytes(const char *text, int32_t **tokens, size_t *count) {
    *count = strlen(text);
    MOERT_TRY(MOERT_NEW_ARRAY(tokens, *count));
    for (size_t i = 0; i < *count; i++)
        (*tokens)[i] = (unsigned char)text[i];
    return MOERT_OK;
}

moert_status moert_text_continue_bytes(moert_context *context, moert_model *model,
                                       const moert_generation_options *options, const char *prompt,
                                       size_t most) {
    moert_generation *generation = NULL;
    int32_t *tokens = NULL;
    moert_text text = {.most = most, .bytes = true};
    moert_text_times times;
    moert_status status = moert_text_bytes(prompt, &tokens, &text.count);
    text.tokens = tokens;
    if (status == MOERT_OK)
        status = moert_generation_create(model, options, &generation);
    status = moert_comm_agree(moert_context_comm(context), status);
    if (status == MOERT_OK)
        status = moert_text_continue(context, generation, &text, &times);
    moert_generation_destroy(generation);
    free(tokens);
    return status;
}

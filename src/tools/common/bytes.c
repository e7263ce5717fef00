/* Generates text byte by byte. */
#include "tools/common/bytes.h"

#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "tools/common/program.h"

static moert_status begin(moert_generation *generation, const char *prompt) {
    const size_t count = strlen(prompt);
    int32_t *tokens;
    MOERT_TRY(MOERT_NEW_ARRAY(&tokens, count));
    for (size_t i = 0; i < count; i++)
        tokens[i] = (unsigned char)prompt[i];
    const moert_status status = moert_generation_begin(generation, tokens, count);
    free(tokens);
    return status;
}

moert_status moert_generate_bytes(moert_context *context, moert_model *model,
                                  const moert_sampling *how, size_t window, const char *prompt,
                                  size_t count) {
    moert_generation *generation = NULL;
    moert_status status = moert_generation_create(model, how, window, &generation);
    if (status == MOERT_OK)
        status = begin(generation, prompt);
    status = moert_comm_agree(moert_context_comm(context), status);
    for (size_t i = 0; i < count && status == MOERT_OK; i++) {
        int32_t token;
        status = moert_generation_next(generation, &token);
        const bool shows = token >= 32 || token == '\n' || token == '\t';
        if (status == MOERT_OK)
            moert_program_say(context, "%c", shows ? (int)token : '?');
    }
    moert_generation_destroy(generation);
    return status;
}

/* moert-op: runs one operation from file to file, to compare results with other code and to convert
 * weights. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "gemm/gemm.h"
#include "tools/op/op.h"

static const moert_file_op *const ops[] = {
    &moert_file_op_quantize,  &moert_file_op_dequantize, &moert_file_op_swizzle,
    &moert_file_op_unswizzle, &moert_file_op_cast,       &moert_file_op_interleave,
    &moert_file_op_gemm,      &moert_file_op_wgrad,      &moert_file_op_glu,
    &moert_file_op_dglu,      &moert_file_op_gemm_quant,
};
enum { OPS = MOERT_COUNT(ops), MOST_OPTIONS = 128 };

static const char *input_path, *output_path;
static unsigned backend;
static const moert_file_op *op; /* the operation to run; NULL if unknown */
static const char *op_word; /* the operation's name as given by the user; NULL if none was given */

static const moert_option common_options[] = {
    {"input", MOERT_OPTION_STRING, &input_path, NULL, "FILE", "safetensors file to read"},
    {"output", MOERT_OPTION_STRING, &output_path, NULL, "FILE", "safetensors file to write"},
    {"backend", MOERT_OPTION_CHOICE, &backend, "auto", "auto" MOERT_BACKEND_TABLE(MOERT_TABLE_WORD),
     "backend of the GEMMs; auto = as MOERT_BACKEND says"},
};
enum { COMMON = MOERT_COUNT(common_options) };

static moert_option options[MOST_OPTIONS];

/* Appends `n` options; returns the new number of options. */
static size_t append(size_t count, const moert_option *more, size_t n) {
    for (size_t i = 0; i < n && count < MOST_OPTIONS; i++)
        options[count++] = more[i];
    return count;
}

/* Collects the common options and the options of the operation. If no operation is named (for
 * --help), collects the options of all operations. A heading precedes each operation's options. */
static size_t make_options(void) {
    size_t count = append(0, common_options, COMMON);
    static char headings[OPS][640];
    for (size_t i = 0; i < OPS; i++) {
        if (op != NULL && op != ops[i])
            continue;
        snprintf(headings[i], sizeof headings[i], "%s: %s", ops[i]->name, ops[i]->about);
        const moert_option heading = {.help = headings[i]};
        count = append(count, &heading, 1);
        count = append(count, ops[i]->options, ops[i]->option_count);
    }
    return count;
}

static moert_status check(const moert_command *command) {
    (void)command;
    if (op == NULL)
        return op_word != NULL
                   ? MOERT_FAIL(ERROR_USAGE, "no operation '%s'; --help lists them", op_word)
                   : MOERT_FAIL(ERROR_USAGE, "no operation is named; --help lists them");
    if (input_path == NULL || output_path == NULL)
        return MOERT_FAIL(ERROR_USAGE, "%s: --input and --output are needed; see --help", op->name);
    if (backend != MOERT_BACKEND_AUTO &&
        setenv("MOERT_BACKEND", moert_config_choice("MOERT_BACKEND", backend), 1) != 0)
        return MOERT_FAIL(ERROR_MEMORY, "no room for MOERT_BACKEND");
    moert_config_reload();
    return MOERT_OK;
}

static moert_status run(moert_context *context) {
    MOERT_TRY(moert_backend_check(moert_context_device(context)));
    MOERT_TRY(moert_file_op_run(op, context, input_path, output_path));
    moert_program_say(context, "%s of %s, backend %s -> %s\n", op->name, input_path,
                      moert_backend_name(moert_context_device(context)), output_path);
    return MOERT_OK;
}

static size_t take_word(int *argc, char ***argv) {
    op = NULL;
    op_word = NULL;
    if (*argc > 1 && (*argv)[1][0] != '-') { /* options follow the operation's name */
        op_word = (*argv)[1];
        for (size_t i = 0; i < OPS; i++)
            if (strcmp(ops[i]->name, op_word) == 0)
                op = ops[i];
        (*argv)[1] = (*argv)[0];
        ++*argv;
        --*argc;
    }
    return make_options();
}

const moert_program moert_op_program = {
    .synopsis = "moert-op OP --input IN --output OUT [OPTION...]",
    .about = "Runs one operation on tensors of a safetensors file and writes its results to "
             "another.",
    .options = options,
    .check = check,
    .run = run,
    .take_word = take_word,
};
MOERT_MAIN(moert_op_program)

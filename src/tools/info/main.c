/* moert-info: prints devices, placement, engines, backends, tuning and settings, and the memory
 * that training a model needs. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "estimate/memory.h"
#include "io/json.h"
#include "tools/common/program.h"
#include "tools/common/table.h"
#include "tools/info/check.h"
#include "tools/info/data.h"
#include "tools/info/survey.h"

static const char *model_path, *checked_path, *documents_path;
static moert_option_list data_paths;
static size_t token_bits;
static size_t batch, length, micro_batches, ep;
static unsigned aux_form, save_mode, replicas;
static size_t verify_every;
static moert_compute_choice compute_choice;
static moert_memory_choice memory_choice;
static const char *most_memory;
static size_t most_bytes, asked_ranks;
static bool as_json;

static const moert_option options[] = {
    {"model", MOERT_OPTION_STRING, &model_path, NULL, "DIR",
     "directory with config.json: also estimate the memory per rank to train this model"},
    {"batch", MOERT_OPTION_UINT, &batch, "16", "1..1000000",
     "sequences of one micro-batch, over all ranks"},
    {"length", MOERT_OPTION_UINT, &length, "0", "0..1000000",
     "tokens per sequence; 0 = 128, or the most that the model takes if that is less"},
    {"micro-batches", MOERT_OPTION_UINT, &micro_batches, "1", "1..1000000",
     "micro-batches per step"},
    {"aux-form", MOERT_OPTION_CHOICE, &aux_form, "hugging-face", MOERT_AUX_WORDS,
     "form of the load-balancing loss"},
    {"save-beside", MOERT_OPTION_CHOICE, &save_mode, "off", MOERT_SAVE_WORDS,
     "as for moert-train; wait and skip add the host copy of a checkpoint to the estimate"},
    {"verify", MOERT_OPTION_UINT, &verify_every, "0", "0..",
     "as for moert-train; above 0 adds the second copy of a layer to the estimate"},
    MOERT_COMPUTE_OPTIONS(compute_choice, "all other GEMMs but the router's"),
    MOERT_MEMORY_OPTIONS(memory_choice, most_memory),
    {"ep", MOERT_OPTION_UINT, &ep, "0", "0..1000000",
     "ranks among which one set of experts is divided; 0 = all"},
    {"replicas", MOERT_OPTION_CHOICE, &replicas, "summed", MOERT_REPLICA_WORDS,
     "as for moert-train"},
    {"ranks", MOERT_OPTION_UINT, &asked_ranks, "0", "0..65536",
     "with --model: estimate for this number of ranks of one host, with devices such as this one; "
     "0 = for the ranks of this run"},
    {"json", MOERT_OPTION_FLAG, &as_json, "0", NULL, "print one JSON object instead"},
    {"check", MOERT_OPTION_STRING, &checked_path, NULL, "DIR",
     "only compare the files of this run directory, checkpoint or model with their checksums"},
    {"data", MOERT_OPTION_LIST, &data_paths, NULL, "PATH...",
     "only describe training data: text, or a Megatron dataset, NAME.bin with NAME.idx"},
    {"token-bits", MOERT_OPTION_UINT, &token_bits, "16", "16..32",
     "width of the tokens of a NAME.bin without NAME.idx, 16 or 32"},
    {"documents", MOERT_OPTION_STRING, &documents_path, NULL, "FILE",
     "file for every document of --data, as a JSON array of tokens, one a line"},
};

static const moert_column host_columns[] = {
    {"host", "host", MOERT_COLUMN_TEXT},
    {"ranks", "ranks", MOERT_COLUMN_COUNT},
    {"topology", "topology", MOERT_COLUMN_TEXT},
};
static const moert_column device_columns[] = {
    {"chosen", "", MOERT_COLUMN_MARK},
    {"host", "host", MOERT_COLUMN_TEXT},
    {"id", "id", MOERT_COLUMN_TEXT},
    {"type", "type", MOERT_COLUMN_TEXT},
    {"compute_units", "units", MOERT_COLUMN_COUNT},
    {"memory", "memory", MOERT_COLUMN_BYTES},
    {"largest", "largest", MOERT_COLUMN_BYTES},
    {"local", "local", MOERT_COLUMN_BYTES},
    {"fp64", "fp64", MOERT_COLUMN_FLAG},
    {"name,platform,driver,pci", "name, platform, driver, pci", MOERT_COLUMN_TEXT},
};
static const moert_column placement_columns[] = {
    {"rank", "rank", MOERT_COLUMN_COUNT},    {"host", "host", MOERT_COLUMN_TEXT},
    {"cores", "cores", MOERT_COLUMN_COUNT},  {"device", "device", MOERT_COLUMN_TEXT},
    {"pci", "pci", MOERT_COLUMN_TEXT},       {"confined", "confined", MOERT_COLUMN_FLAG},
    {"shared", "shared", MOERT_COLUMN_FLAG}, {"cpus", "cpus", MOERT_COLUMN_TEXT},
};
static const moert_column digits_columns[] = {
    {"rank", "rank", MOERT_COLUMN_COUNT},          {"device", "device", MOERT_COLUMN_TEXT},
    {"bf16_sums", "bf16 sums", MOERT_COLUMN_TEXT}, {"portable", "portable", MOERT_COLUMN_FLAG},
    {"reason", "what differs", MOERT_COLUMN_TEXT},
};
static const moert_column choice_columns[] = {
    {"auto", "", MOERT_COLUMN_MARK},
    {"name", "name", MOERT_COLUMN_TEXT},
    {"works", "works", MOERT_COLUMN_FLAG},
    {"reason", "why not", MOERT_COLUMN_TEXT},
};
static const moert_column tuning_columns[] = {
    {"operation", "operation", MOERT_COLUMN_TEXT},
    {"type", "type", MOERT_COLUMN_TEXT},
    {"choices", "choices", MOERT_COLUMN_TEXT},
    {"from", "from", MOERT_COLUMN_TEXT},
};
static const moert_column variable_columns[] = {
    {"set", "", MOERT_COLUMN_MARK},        {"name", "name", MOERT_COLUMN_TEXT},
    {"value", "value", MOERT_COLUMN_TEXT}, {"default", "default", MOERT_COLUMN_TEXT},
    {"ranks", "ranks", MOERT_COLUMN_TEXT}, {"help,limits", "meaning", MOERT_COLUMN_TEXT},
};
static const moert_column memory_columns[] = {{"rank", "rank", MOERT_COLUMN_COUNT},
#define MEMORY_COLUMN(field, title, help) {#field, title, MOERT_COLUMN_BYTES},
                                              MOERT_MEMORY_TABLE(MEMORY_COLUMN)
#undef MEMORY_COLUMN
};

static const moert_column largest_columns[] = {
    {"bytes", "bytes", MOERT_COLUMN_BYTES},
    {"kind", "kind", MOERT_COLUMN_TEXT},
    {"name", "largest buffers", MOERT_COLUMN_TEXT},
};

#define PRINT(rows, columns) moert_table_print(stdout, (rows), (columns), MOERT_COUNT(columns))

static const char *word(const json_t *object, const char *key) {
    return json_string_value(json_object_get(object, key));
}

static long long number(const json_t *object, const char *key) {
    return json_integer_value(json_object_get(object, key));
}

static moert_status print_memory(const json_t *m) {
    const double imbalance = json_real_value(json_object_get(m, "imbalance"));
    const char *recompute = word(m, "recompute"), *moments = word(m, "moments"),
               *gradients = word(m, "gradients");
    char needed[MOERT_TEXT_BYTES_SIZE], limit[MOERT_TEXT_BYTES_SIZE];
    printf("\nmemory per rank to train %s (weights on disk: %s)\n%lld sequences of %lld tokens, "
           "experts in %s, dense layers in %s, %s exchange of rows in %s and back in %s, "
           "micro-batches in a step: %lld\n",
           word(m, "path"), word(m, "weights"), number(m, "batch"), number(m, "length"),
           word(m, "precision"), word(m, "dense"), word(m, "engine"), word(m, "dispatch"),
           word(m, "combine"), number(m, "micro_batches"));
    if (imbalance > 1.0)
        printf("rows of a rank: %.3g times those of balanced routing\n", imbalance);
    if (number(m, "loss_chunk") > 0)
        printf("logits of %lld tokens at a time\n", number(m, "loss_chunk"));
    if (strcmp(recompute, "none") != 0)
        printf("the backward computes %s again\n",
               strcmp(recompute, "layer") == 0 ? "each layer" : "the experts' first projections");
    if (strcmp(moments, "f32") != 0 || strcmp(gradients, "f32") != 0)
        printf("moments in %s, gradients of layers in %s\n", moments, gradients);
    if (strcmp(word(m, "optimizer"), "adamw") != 0)
        printf("optimizer: %s\n", word(m, "optimizer"));
    MOERT_TRY(PRINT(json_object_get(m, "ranks"), memory_columns));
    moert_text_put_bytes((double)number(m, "needed"), needed);
    moert_text_put_bytes((double)number(m, "limit"), limit);
    printf("\nrank %lld has the least room: it takes %s and may take %s%s\n\n",
           number(m, "least_room"), needed, limit,
           json_is_true(json_object_get(m, "fits")) ? "" : ", so the run does not fit");
    MOERT_TRY(PRINT(json_object_get(m, "largest"), largest_columns));
    printf("\n");
#define EXPLAIN(field, title, help) printf("  %-12s %s\n", title, help);
    MOERT_MEMORY_TABLE(EXPLAIN)
#undef EXPLAIN
    return MOERT_OK;
}

static moert_status print_tuning(const json_t *survey) {
    const json_t *tuning = json_object_get(survey, "tuning"),
                 *measured = json_object_get(survey, "measured");
    if (json_array_size(tuning) == 0) {
        printf("\ntuning: none; kernels in GPU form choose their tiles by the shape\n");
        return MOERT_OK;
    }
    const char *file = word(measured, "file");
    printf("\ntuning of GEMMs of any shape; for single shapes there are %lld measured rows in %s\n",
           number(measured, "rows"), file[0] != '\0' ? file : "no file");
    return PRINT(tuning, tuning_columns);
}

static moert_status print_text(const json_t *survey) {
    const json_t *memory = json_object_get(survey, "memory");
    /* fails if memory ran out; otherwise every JSON value below exists */
    MOERT_TRY(moert_json_memory("the report"));
    printf("moert %s, %s\n\nhosts\n", word(survey, "version"), word(survey, "mpi"));
    MOERT_TRY(PRINT(json_object_get(survey, "hosts"), host_columns));
    printf("\nOpenCL devices (* = in use)\n");
    MOERT_TRY(PRINT(json_object_get(survey, "devices"), device_columns));
    printf("\nplacement\n");
    MOERT_TRY(PRINT(json_object_get(survey, "placement"), placement_columns));
    printf("\ndigits (portable: equal to those of every CPU with a portable OpenCL driver)\n");
    MOERT_TRY(PRINT(json_object_get(survey, "digits"), digits_columns));
    printf("\nexchange engines in groups of %lld of %lld ranks (* = auto)\n",
           number(survey, "group"), number(survey, "ranks"));
    MOERT_TRY(PRINT(json_object_get(survey, "engines"), choice_columns));
    printf("\nbackends (* = auto)\n");
    MOERT_TRY(PRINT(json_object_get(survey, "backends"), choice_columns));
    MOERT_TRY(print_tuning(survey));
    printf("\nvariables (* = set in the environment; ranks: all have the same value, or any)\n");
    MOERT_TRY(PRINT(json_object_get(survey, "variables"), variable_columns));
    return memory != NULL ? print_memory(memory) : MOERT_OK;
}

static moert_status check(const moert_command *command) {
    (void)command;
    if (most_memory != NULL)
        MOERT_TRY(moert_text_get_bytes(most_memory, "--memory", &most_bytes));
    if (documents_path != NULL && data_paths.count == 0)
        return MOERT_FAIL(ERROR_USAGE, "--documents needs --data PATH");
    return MOERT_OK;
}

static moert_status run_data(void) {
    const moert_status status =
        moert_info_data(&data_paths, (unsigned)token_bits, documents_path, as_json);
    free(data_paths.words);
    return status;
}

static moert_status run(moert_context *context) {
    moert_comm *world = moert_context_comm(context);
    moert_model_config config = {.text = NULL};
    moert_survey_model model = {model_path,     model_path != NULL ? &config : NULL,
                                batch,          length > 0 ? length : 128,
                                micro_batches,  (moert_aux_form)aux_form,
                                save_mode != 0, verify_every > 0,
                                asked_ranks,    ep,
                                most_bytes,     replicas == MOERT_REPLICAS_EXACT};
    json_t *survey = NULL;
    moert_status status = MOERT_OK;
    if (checked_path != NULL)
        return moert_comm_agree(world, moert_comm_rank(world) == 0 ? moert_info_check(checked_path)
                                                                   : MOERT_OK);
    if (data_paths.count > 0)
        return moert_comm_agree(world, moert_comm_rank(world) == 0 ? run_data() : MOERT_OK);
    if (model_path != NULL)
        MOERT_TRY(moert_comm_agree(world, moert_model_config_read(model_path, &config)));
    if (model_path != NULL && length == 0)
        model.length = moert_min(model.length, config.max_positions);
    MOERT_TRY(moert_comm_agree(world, moert_program_compute(&compute_choice, &config)));
    config.memory = memory_choice;
    MOERT_TRY_OR(done, moert_survey(context, asked_ranks > 0 ? 0 : ep, &model, &survey));
    if (moert_comm_rank(world) == 0)
        status = as_json ? moert_table_json("the report", survey) : print_text(survey);
    status = moert_comm_agree(world, status);
done:
    json_decref(survey);
    moert_model_config_free(&config);
    return status;
}

MOERT_PROGRAM_MAIN(
    "[mpirun -n R] moert-info [--model DIR [--batch B] [--length S] [--micro-batches N] "
    "[--loss-chunk N] [--save-beside M] [--verify N] [--aux-form F] [--precision P] [--dense P] "
    "[--dispatch D] [--combine C]] [--ep N] [--json], or moert-info --check DIR, or moert-info "
    "--data PATH [--documents FILE]",
    "Prints what moert finds and chooses on these ranks: devices, placement, whether digits are\n"
    "those of every OpenCL driver for CPUs, exchange engines, backends, tuning and the MOERT_*\n"
    "variables; with --model also the memory per rank that training the model takes.",
    check)

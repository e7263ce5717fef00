/*
 * libFuzzer targets: no content of a file or datagram makes a reader crash, read out of bounds or
 * leak. A refusal has a message that names the file or directory.
 *
 * FUZZ_TARGET names a row of the table. The input is the content of one file; if a reader reads a
 * directory, the other files of the directory are legal. Files with a checksum get the right
 * checksum, because a random mutation would never produce it.
 *
 *   make fuzz TARGET=safetensors RUNS=1000000
 */
#include <errno.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/checksum.h"
#include "base/memory.h"
#include "data/data.h"
#include "device/pocl/pocl.h"
#include "gemm/tuning/tuning.h"
#include "io/durable.h"
#include "io/json.h"
#include "io/manifest.h"
#include "io/model_config.h"
#include "io/safetensors.h"
#include "tests/fuzz/fuzz_files.h"
#include "tools/report/page.h"
#include "train/checkpoint.h"

int LLVMFuzzerInitialize(int *argc, char ***argv);
int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count);
const char *__asan_default_options(void);

/* Files that claim very large contents must fail with ERROR_MEMORY. */
const char *__asan_default_options(void) {
    return "allocator_may_return_null=1:max_allocation_size_mb=256:detect_odr_violation=0";
}

static char directory[64]; /* of all files */
char fuzz_path[128];
const uint8_t *fuzz_input;
size_t fuzz_input_bytes;

void fuzz_fail(const char *format, ...) {
    va_list arguments;
    va_start(arguments, format);
    fputs("fuzz_files: ", stderr);
    vfprintf(stderr, format, arguments);
    fputc('\n', stderr);
    va_end(arguments);
    abort();
}

/* Writes two pieces as one file. */
static void write_pieces(const char *name, const void *head, size_t head_bytes, const void *bytes,
                         size_t count) {
    char to[192];
    snprintf(to, sizeof to, "%s/%s", directory, name);
    FILE *file = fopen(to, "wb");
    if (file == NULL || fwrite(head, 1, head_bytes, file) != head_bytes ||
        fwrite(bytes, 1, count, file) != count || fclose(file) != 0)
        fuzz_fail("%s: %s", to, strerror(errno));
}

static void write_file(const char *name, const void *bytes, size_t count) {
    write_pieces(name, NULL, 0, bytes, count);
}

/* ---- readers ---- */

static moert_status read_tensors(const char *from) {
    moert_tensors *tensors;
    MOERT_TRY(moert_tensors_open(from, &tensors));
    for (size_t i = 0; i < moert_tensors_count(tensors); i++) {
        const moert_tensor *tensor = moert_tensors_at(tensors, i);
        const size_t last = tensor->elements > 0 ? tensor->elements - 1 : 0;
        float value;
        int32_t whole;
        if (moert_tensors_find(tensors, tensor->name) != tensor)
            fuzz_fail("tensor %zu is not found by its name", i);
        moert_tensor_read_f32(tensor, last, tensor->elements > 0, &value);
        moert_tensor_read_i32(tensor, 0, tensor->elements > 0, &whole);
    }
    moert_tensors_close(tensors);
    return MOERT_OK;
}

static moert_status read_safetensors(void) {
    return read_tensors(fuzz_path);
}

static moert_status read_index(void) {
    return read_tensors(directory);
}

static moert_status read_config(void) {
    moert_model_config config;
    moert_status status = moert_model_config_read(fuzz_path, &config);
    if (status == MOERT_OK) {
        moert_model_config_check_model(&config);
        moert_model_config_free(&config);
    }
    return status;
}

/* The input is a manifest without its own checksum. */
static moert_status read_manifest(void) {
    char ending[64], digits[MOERT_CHECKSUM_DIGITS + 1];
    size_t read;
    snprintf(ending, sizeof ending, ",\n \"xxh3\": \"%s\"\n}\n",
             moert_checksum_text(moert_checksum_of(fuzz_input, fuzz_input_bytes), digits));
    write_pieces("manifest.json", fuzz_input, fuzz_input_bytes, ending, strlen(ending));
    return moert_manifest_check(directory, &read);
}

/* The input is an entry of the kernel cache in the form in which PoCL's files are stored, without
 * the checksum of the entry. */
static moert_status read_cache(void) {
    const moert_checksum sum = moert_checksum_of(fuzz_input, fuzz_input_bytes);
    moert_pocl_step step;
    write_pieces("entry.bin", &sum, sizeof sum, fuzz_input, fuzz_input_bytes);
    if (moert_pocl_directory() == NULL)
        moert_pocl_set_directory(); /* moert_pocl_begin() creates the directory again */
    MOERT_TRY(moert_pocl_begin("entry", "fuzz", &step));
    moert_pocl_end(&step, false);
    return moert_pocl_directory() != NULL ? moert_remove_tree(moert_pocl_directory()) : MOERT_OK;
}

static moert_status read_state(void) {
    moert_run_state state;
    return moert_run_state_read(fuzz_path, &state);
}

/* Reads the record of a run; if this succeeds, also makes the verdict and the page. */
static moert_status read_record(void) {
    static const moert_verdict none = {.count = 0};
    moert_run_record record;
    moert_verdict verdict;
    char *page;
    moert_status status = moert_run_record_read(directory, &record);
    if (status == MOERT_OK) {
        moert_verdict_make(&record, &verdict);
        if (moert_report_page("fuzz", &record, &verdict, &none, NULL, &page) != MOERT_OK)
            fuzz_fail("no page: %s", moert_last_error());
        free(page);
    }
    moert_run_record_free(&record);
    return status;
}

static moert_status read_source(moert_source *source) {
    const moert_split split = {{0.8, 0.1, 0.1}};
    int32_t tokens[8], targets[8], positions[8];
    moert_data *data;
    for (size_t i = 0; i < source->documents; i++)
        if (moert_source_start(source, i) + moert_source_length(source, i) > source->tokens)
            fuzz_fail("document %zu ends after the last token", i);
    MOERT_TRY(moert_data_from_source(source, &split, &data));
    moert_data_check_vocabulary(data, 256);
    moert_data_sequence(data, (moert_draw){.seed = 1}, 8, tokens, targets, positions);
    moert_data_kept_sequence(data, (moert_kept_draw){MOERT_TEST, 0, 2}, 8, tokens, targets,
                             positions);
    if (moert_data_order_epochs(data, 1, 8) == MOERT_OK) {
        moert_data_sequence(data, (moert_draw){.step = 3, .before = 6}, 8, tokens, targets,
                            positions);
        moert_data_kept_sequence(data, (moert_kept_draw){MOERT_HELD_OUT, 1, 2}, 8, tokens, targets,
                                 positions);
    }
    moert_data_destroy(data);
    return MOERT_OK;
}

static moert_status read_tokens(void) {
    moert_source *source;
    MOERT_TRY(moert_source_open_raw(fuzz_path, 16, &source));
    return read_source(source);
}

static moert_status read_text(void) {
    moert_source *source;
    const char *paths[] = {fuzz_path};
    MOERT_TRY(moert_source_open_text(paths, 1, &source));
    return read_source(source);
}

static moert_status read_dataset(void) {
    moert_source *source;
    const char *paths[] = {fuzz_path};
    MOERT_TRY(moert_source_open(paths, 1, 16, &source));
    return read_source(source);
}

static moert_status read_tuning(void) {
    char *line = NULL, problem[160];
    size_t room = 0;
    FILE *file = fopen(fuzz_path, "r");
    while (file != NULL && getline(&line, &room, file) > 0) {
        moert_tuning_row row;
        bool empty;
        if (moert_tuning_parse(line, &row, &empty, problem) && !empty)
            moert_choices_check(&row.choices, problem);
    }
    free(line);
    if (file != NULL)
        fclose(file);
    return MOERT_OK;
}

/* ---- the table ---- */

static const char small_config[] = "{}\n";
/* a tensor x of four bytes */
static const char small_tensors[] =
    "\x40\0\0\0\0\0\0\0"
    "{\"x\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}"
    "          \0\0\0\0";
static const char small_tokens[64] = "the tokens of the dataset";
static const char small_metrics[] =
    "{\"step\": 0, \"loss\": 5.5, \"tokens_per_s\": 9, \"skipped\": false}\n";
static const char small_steps[] =
    "{\"step\":1,\"step_ms\":[9.5],\"operations\":{\"norms\":[0.5],\"host\":[9]}}\n";

/* X(name, file that gets the fuzz_input, reader). `others` lists the other files of the
 * directory. */
#define TARGETS(X)                                                                                 \
    X(safetensors, "x.safetensors", read_safetensors)                                              \
    X(index, "model.safetensors.index.json", read_index)                                           \
    X(config, "config.json", read_config)                                                          \
    X(manifest, "manifest.json", read_manifest)                                                    \
    X(metrics, "metrics.jsonl", read_record)                                                       \
    X(run, "run.json", read_record)                                                                \
    X(profile_steps, "profile-steps.jsonl", read_record)                                           \
    X(profile_ranks, "profile-ranks.json", read_record)                                            \
    X(profile, "profile.json", read_record)                                                        \
    X(tokens, "tokens.bin", read_tokens)                                                           \
    X(dataset, "x.idx", read_dataset)                                                              \
    X(text, "text", read_text)                                                                     \
    X(tuning, "tuning.txt", read_tuning)                                                           \
    X(state, "state.json", read_state)                                                             \
    X(cache, "entry.bin", read_cache)                                                              \
    X(hosts, "hosts", read_hosts)                                                                  \
    X(notes, "note", read_notes)

static const struct {
    const char *name, *file;
    moert_status (*read)(void);
} targets[] =
    {
#define TARGET(name, file, read) {#name, file, read},
        TARGETS(TARGET)
#undef TARGET
},
  *target;

static const struct {
    const char *target, *file, *content;
    size_t bytes;
} others[] = {
    {"index", "a.safetensors", small_tensors, sizeof small_tensors - 1},
    {"dataset", "x.bin", small_tokens, sizeof small_tokens},
    {"manifest", "config.json", small_config, sizeof small_config - 1},
    {"run", "metrics.jsonl", small_metrics, sizeof small_metrics - 1},
    {"profile_steps", "metrics.jsonl", small_metrics, sizeof small_metrics - 1},
    {"profile_ranks", "metrics.jsonl", small_metrics, sizeof small_metrics - 1},
    {"profile_ranks", "profile-steps.jsonl", small_steps, sizeof small_steps - 1},
    {"profile", "metrics.jsonl", small_metrics, sizeof small_metrics - 1},
    {"profile", "profile-steps.jsonl", small_steps, sizeof small_steps - 1},
};

static void clean_up(void) {
    unlink(fuzz_path);
    for (size_t i = 0; i < MOERT_COUNT(others); i++) {
        char other[192];
        snprintf(other, sizeof other, "%s/%s", directory, others[i].file);
        unlink(other);
    }
    rmdir(directory);
}

int LLVMFuzzerInitialize(int *argc, char ***argv) {
    const char *name = getenv("FUZZ_TARGET");
    (void)argc;
    (void)argv;
    setenv("MOERT_LOG", "error", 1);
    unsetenv("POCL_CACHE_DIR");
    moert_json_watch(malloc);
    for (size_t i = 0; i < MOERT_COUNT(targets); i++)
        if (name != NULL && strcmp(targets[i].name, name) == 0)
            target = &targets[i];
    if (target == NULL)
        fuzz_fail("FUZZ_TARGET is '%s', not a reader", name != NULL ? name : "");
    snprintf(directory, sizeof directory, "/dev/shm/moert-fuzz-XXXXXX");
    if (mkdtemp(directory) == NULL)
        fuzz_fail("%s: %s", directory, strerror(errno));
    setenv("MOERT_CACHE_DIR", directory, 1);
    snprintf(fuzz_path, sizeof fuzz_path, "%s/%s", directory, target->file);
    for (size_t i = 0; i < MOERT_COUNT(others); i++)
        if (strcmp(others[i].target, target->name) == 0)
            write_file(others[i].file, others[i].content, others[i].bytes);
    atexit(clean_up);
    return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *bytes, size_t count) {
    fuzz_input = bytes;
    fuzz_input_bytes = count;
    write_file(target->file, bytes, count);
    if (target->read() == MOERT_OK)
        return 0;
    if (strstr(moert_last_error(), directory) == NULL)
        fuzz_fail("the message does not name the file: %s", moert_last_error());
    return 0;
}

// run: check=1,2 all=3
/* Saves that run beside training: the bytes, failures of one rank, the rate, and saves that are
 * given up. This program replaces pwrite(), which then fails as if the disk were full on the rank
 * `victim`. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/dtype.h"
#include "base/phase.h"
#include "base/rng.h"
#include "device/elements.h"
#include "io/durable.h"
#include "io/manifest.h"
#include "support/files.h"
#include "support/mpi.h"
#include "train/save.h"
#include "train/values.h"

static bool disk_is_full;
static moert_model *model;
static moert_optimizer *optimizer;
static char directory[256]; /* of rank 0 */

ssize_t pwrite(int file, const void *data, size_t bytes, off_t offset) {
    if (!disk_is_full)
        return (ssize_t)syscall(SYS_pwrite64, file, data, bytes, offset);
    errno = ENOSPC;
    return -1;
}

static int open_all(void **state) {
    const int failed = open_context_and_directory(state);
    snprintf(directory, sizeof directory, "%s", test_directory);
    return failed || moert_comm_broadcast(test_comm, 0, directory, sizeof directory) != MOERT_OK;
}

/* Creates a model on EP groups of `ep` ranks (0: one group of all ranks), and its optimizer. */
static void open_state(const moert_model_config *config, size_t ep) {
    model = open_model(open_mesh(ep), config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 1));
    optimizer = open_optimizer(model, &(moert_optimizer_options){.beta1 = 0.9, .beta2 = 0.9});
}

/* The fixture of most tests. */
static int open_small_state(void **state) {
    const moert_model_config config = golden_config("mixtral-tiny");
    (void)state;
    open_state(&config, 0);
    return 0;
}

/* A saver for DIRECTORY/name; the running test owns it. */
static moert_saver *open_saver(const char *name, double bytes_per_s) {
    moert_saver *saver = NULL;
    const moert_saver_options options = {.optimizer = optimizer,
                                         .config_text = "{}",
                                         .directory = titled("%s/%s", directory, name),
                                         .keep = {.last = 2},
                                         .beside = true,
                                         .bytes_per_s = bytes_per_s};
    ASSERT_OK_ON_ALL(moert_saver_create(&options, &saver));
    return owned(saver, moert_saver_destroy);
}

/* True on all ranks if DIRECTORY/name/entry exists. */
static bool exists(const char *name, const char *entry) {
    return on_all(access(titled("%s/%s/%s", directory, name, entry), F_OK) == 0);
}

static moert_status begin(moert_saver *saver, uint64_t step) {
    return moert_saver_begin(saver, &(moert_run_state){.step = step, .applied = step, .seed = 1});
}

/* Saves while the training waits. */
static moert_status save(moert_saver *saver, uint64_t step) {
    return moert_saver_write(saver, &(moert_run_state){.step = step, .applied = step, .seed = 1});
}

static moert_status save_beside(moert_saver *saver, uint64_t step) {
    MOERT_TRY(begin(saver, step));
    return moert_saver_wait(saver);
}

/* Polls until the save has ended. */
static moert_status poll_to_end(moert_saver *saver) {
    moert_status status = MOERT_OK;
    for (const uint64_t from = moert_clock_ns(); moert_saver_is_busy(saver);) {
        status = moert_saver_poll(saver);
        moert_clock_pause(from);
    }
    return status;
}

TEST_WITH(test_a_save_beside_training_writes_the_bytes_of_its_step, open_small_state, NULL) {
    moert_saver *held = open_saver("held", 0.0), *beside = open_saver("beside", 0.0);
    ASSERT_OK_ON_ALL(save(held, 3));
    ASSERT_OK_ON_ALL(begin(beside, 3));
    ASSERT_ON_ALL(moert_saver_is_busy(beside));
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 2)); /* a later step changes the weights */
    ASSERT_OK_ON_ALL(poll_to_end(beside));
    const char *compare = titled("diff -r %s/held %s/beside", directory, directory);
    ASSERT_ON_ALL(test_rank != 0 || system(compare) == 0);
    ASSERT_ON_ALL(exists("beside/step-00000003", "optimizer.safetensors"));
    const moert_saved saved = moert_saver_last(beside);
    assert_true(saved.step == 3 && saved.taken_s > 0.0 && strstr(saved.path, "step-00000003"));
}

TEST_WITH(test_a_full_disk_of_one_rank_fails_all_and_leaves_nothing, open_small_state, NULL) {
    moert_saver *saver = open_saver("full", 0.0);
    ASSERT_OK_ON_ALL(save_beside(saver, 1));
    for (int waits = 0; waits <= 1; waits++) {
        ASSERT_OK_ON_ALL(begin(saver, 1));
        disk_is_full = test_rank == test_ranks - 1;
        const moert_status status = waits ? moert_saver_wait(saver) : poll_to_end(saver);
        disk_is_full = false;
        ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_IO, "No space left on device");
        ASSERT_ON_ALL(exists("full", "step-00000001") && !exists("full", "step-00000001.tmp"));
    }
    ASSERT_OK_ON_ALL(save_beside(saver, 2));
    ASSERT_ON_ALL(exists("full", "step-00000002"));
}

TEST_WITH(test_a_save_keeps_to_its_rate_and_ticks_only_in_a_wait, open_small_state, NULL) {
    const double seconds = 0.5;
    const double bytes = 4.0 * (double)moert_saver_floats(model) * (double)test_ranks;
    moert_saver *saver = open_saver("slow", bytes / seconds);
    ASSERT_OK_ON_ALL(begin(saver, 1));
    const uint64_t ticks = moert_phase_ticks(), from = moert_clock_ns();
    usleep(200000);
    ASSERT_ON_ALL(moert_phase_ticks() == ticks);
    ASSERT_OK_ON_ALL(moert_saver_poll(saver));
    ASSERT_ON_ALL(moert_saver_is_busy(saver));
    ASSERT_OK_ON_ALL(moert_saver_wait(saver));
    ASSERT_ON_ALL(moert_phase_ticks() > ticks + 3);
    const double taken = 1e-9 * (double)(moert_clock_ns() - from);
    ASSERT_ON_ALL(taken > 0.9 * seconds && moert_saver_last(saver).taken_s > 0.9 * seconds);
}

TEST_WITH(test_a_save_that_is_given_up_leaves_nothing, open_small_state, NULL) {
    moert_saver *saver = open_saver("dropped", 1000.0);
    ASSERT_OK_ON_ALL(begin(saver, 1));
    const uint64_t from = moert_clock_ns();
    while (!exists("dropped", "step-00000001.tmp/optimizer.safetensors"))
        ASSERT_OK_ON_ALL(moert_saver_poll(saver));
    release_owned(); /* destroys the saver */
    ASSERT_ON_ALL(moert_clock_ns() - from < 10000000000u);
    ASSERT_ON_ALL(!exists("dropped", "step-00000001.tmp") && !exists("dropped", "step-00000001"));
}

TEST_WITH(test_a_model_in_several_files_has_the_rounded_weights_of_one, open_small_state, NULL) {
    enum { FILE_BYTES = 40000 };
    static const moert_file_type types[] = {MOERT_FILE_F32, MOERT_FILE_BF16};
    static const char *const names[] = {"\"torch_dtype\": \"float32\"",
                                        "\"torch_dtype\": \"bfloat16\""};
    const char *one = titled("%s/one", directory);
    ASSERT_OK_ON_ALL(moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 0, NULL}, one));
    for (size_t row = 0; row < MOERT_COUNT(types); row++) {
        const moert_export split = {"{\"torch_dtype\": \"float32\"}", types[row], FILE_BYTES, NULL};
        const char *path = titled("%s/split-%zu", directory, row);
        ASSERT_OK_ON_ALL(moert_model_save(model, &split, path));
        if (test_rank != 0)
            continue;
        size_t bytes;
        const moert_tensors *whole = open_tensors(one), *parts = open_tensors(path);
        const size_t files = count_files(path, ".safetensors");
        assert_true(files > 2 && moert_tensors_count(whole) == moert_tensors_count(parts));
        for (size_t i = 0; i < moert_tensors_count(whole); i++) {
            const moert_tensor *a = moert_tensors_at(whole, i), *b = moert_tensors_at(parts, i);
            const size_t count = a->elements;
            float *x = test_alloc(count * sizeof *x), *y = test_alloc(count * sizeof *y);
            assert_true(strcmp(a->name, b->name) == 0 && b->type == types[row]);
            ASSERT_OK(moert_tensor_read_f32(a, 0, count, x));
            ASSERT_OK(moert_tensor_read_f32(b, 0, count, y));
            round_all(x, count, row == 0 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16);
            assert_same_bits(a->name, y, x, count);
        }
        for (size_t i = 1; i <= files; i++) {
            const moert_tensors *file =
                open_tensors(titled("%s/model-%05zu-of-%05zu.safetensors", path, i, files));
            size_t data = 0;
            for (size_t j = 0; j < moert_tensors_count(file); j++)
                data += moert_tensors_at(file, j)->bytes;
            assert_true(data <= FILE_BYTES || moert_tensors_count(file) == 1);
        }
        ASSERT_OK(moert_manifest_check(path, &bytes));
        assert_true(bytes > 0);
        assert_non_null(strstr(read_file(titled("%s/config.json", path), NULL), names[row]));
    }
}

TEST_WITH(test_the_files_of_the_tokenizer_go_along, open_small_state, NULL) {
    static const char content[] = "{\"a\": \"\0binary\"}";
    const char *from = titled("%s/from", directory), *to = titled("%s/with", directory);
    if (test_rank == 0) {
        ASSERT_OK(moert_make_directories(from));
        write_file("from/tokenizer.model", content, sizeof content);
        write_text("from/notes.txt", "not of the tokenizer");
    }
    ASSERT_OK_ON_ALL(moert_comm_barrier(test_comm));
    ASSERT_OK_ON_ALL(moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 0, from}, to));
    ASSERT_ON_ALL(!exists("with", "notes.txt") && !exists("with", "tokenizer.json") &&
                  !exists("with", "tokenizer.model.tmp"));
    const char *compare = titled("cmp %s/tokenizer.model %s/tokenizer.model", from, to);
    ASSERT_ON_ALL(test_rank != 0 || system(compare) == 0);
}

/* ---- files whose tensors have all experts of a layer, transposed ---- */

/* Sets both kinds of moments to the magnitudes of the weights. With `compare`, only returns whether
 * the moments have these values. */
static bool magnitudes(bool compare) {
    bool same = true;
    for (size_t i = 0; i < moert_model_tensor_count(model); i++) {
        const moert_model_tensor *tensor = &moert_model_tensors(model)[i];
        const size_t count = moert_model_shard(tensor).count;
        if (count == 0)
            continue;
        float *values = test_alloc(count * sizeof *values), *got = test_alloc(count * sizeof *got);
        const moert_elements weights = moert_values_of(optimizer, tensor, MOERT_VALUES_WEIGHTS);
        ASSERT_OK(moert_elements_read(&weights, 0, count, values));
        for (size_t v = 0; v < count; v++)
            values[v] = fabsf(values[v]);
        for (size_t kind = MOERT_VALUES_MOMENTS; kind < moert_checkpoint_kinds(model); kind++) {
            const moert_elements moments =
                moert_values_of(optimizer, tensor, (moert_value_kind)kind);
            if (!compare)
                ASSERT_OK(moert_elements_write(&moments, 0, count, values));
            ASSERT_OK(moert_elements_read(&moments, 0, count, got));
            same = same && memcmp(values, got, count * sizeof *got) == 0;
        }
    }
    return same;
}

/* Checks a matrix [rows, columns] of all experts in a file. Value v in the file must be the v-th
 * value that the initialization has drawn. */
static void check_matrix(const moert_tensors *files, const char *name, size_t rows,
                         size_t columns) {
    const moert_tensor *tensor = moert_tensors_find(files, name);
    assert_true(tensor != NULL && tensor->rank == 3 && tensor->shape[1] == columns &&
                tensor->shape[2] == rows);
    float *got = test_alloc(tensor->bytes), *drawn = test_alloc(tensor->bytes);
    ASSERT_OK(moert_tensor_read_f32(tensor, 0, tensor->elements, got));
    moert_rng_normals(1, moert_rng_stream(name), 0, 0.02f, drawn, tensor->elements);
    for (size_t e = 0; e < tensor->shape[0]; e++)
        for (size_t r = 0; r < rows; r++)
            for (size_t c = 0; c < columns; c++)
                assert_true(got[(e * columns + c) * rows + r] ==
                            drawn[(e * rows + r) * columns + c]);
}

/* Checks that the moments of a checkpoint are the magnitudes of its weights. */
static void check_moments(const char *path) {
    const moert_tensors *weights = open_tensors(path);
    const moert_tensors *moments = open_tensors(titled("%s/optimizer.safetensors", path));
    assert_int_equal(moert_tensors_count(moments), 2 * moert_tensors_count(weights));
    for (size_t i = 0; i < moert_tensors_count(moments); i++) {
        const moert_tensor *m = moert_tensors_at(moments, i);
        const moert_tensor *w = moert_tensors_find(weights, strchr(m->name, '.') + 1);
        assert_true(w != NULL && w->bytes == m->bytes);
        for (size_t v = 0; v < w->elements; v++)
            assert_true(((const float *)m->data)[v] == fabsf(((const float *)w->data)[v]));
    }
}

TEST(test_checkpoints_of_fused_experts_have_one_layout_on_any_division_of_them) {
    enum { I = 200 }; /* large enough that shards begin within a row of a matrix */
    static const size_t groups[] = {1, 0};
    moert_model_config config;
    ASSERT_OK(moert_model_config_read("tests/golden/family/gpt-oss", &config));
    owned(config.text, free);
    config.intermediate = I;
    for (size_t g = 0; g < MOERT_COUNT(groups); g++) {
        open_state(&config, groups[g]);
        magnitudes(false);
        ASSERT_OK_ON_ALL(save(open_saver(titled("held-%zu", g), 0.0), 1));
        ASSERT_OK_ON_ALL(save_beside(open_saver(titled("beside-%zu", g), 0.0), 1));
    }
    static const struct {
        const char *written;
        size_t ep; /* EP of the run that reads the save */
    } saves[] = {{"held-0", 0}, {"held-1", 1}, {"beside-0", 1}, {"beside-1", 0}};
    for (size_t i = 0; i < MOERT_COUNT(saves); i++) {
        const char *path = titled("%s/%s/step-00000001", directory, saves[i].written);
        moert_run_state loaded;
        if (test_rank == 0) {
            const moert_tensors *files = open_tensors(path);
            check_matrix(files, "model.layers.1.mlp.experts.gate_up_proj", 2 * I, config.hidden);
            check_matrix(files, "model.layers.2.mlp.experts.down_proj", config.hidden, I);
            check_moments(path);
        }
        open_state(&config, saves[i].ep);
        ASSERT_OK_ON_ALL(moert_model_initialize(model, 2));
        ASSERT_OK_ON_ALL(moert_checkpoint_state(path, &loaded));
        ASSERT_OK_ON_ALL(moert_checkpoint_load(optimizer, path, NULL));
        ASSERT_ON_ALL(loaded.step == 1 && magnitudes(true));
    }
}

MPI_TESTS(open_all, close_context_and_directory)

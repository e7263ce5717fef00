// run: np=1,2,3
/* Saves beside training: the bytes, failures of one rank, the rate, and saves that are given up.
 * This program replaces pwrite: on the victim it fails with a full disk. */
#include <errno.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "base/clock.h"
#include "base/phase.h"
#include "io/durable.h"
#include "io/manifest.h"
#include "support/files.h"
#include "support/mpi.h"
#include "train/save.h"

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

static void destroy_optimizer(void *made) {
    moert_optimizer_destroy(made);
}

static void open_checkpoint(void) {
    const moert_model_config config = golden_config("mixtral-tiny");
    model = open_model(open_mesh(0), &config);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 1));
    ASSERT_OK_ON_ALL(moert_optimizer_create(
        model, &(moert_optimizer_options){.beta1 = 0.9, .beta2 = 0.9}, &optimizer));
    owned(optimizer, destroy_optimizer);
}

static void destroy_saver(void *made) {
    moert_saver_destroy(made);
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
    return owned(saver, destroy_saver);
}

static moert_run_state state_of(uint64_t step) {
    return (moert_run_state){.step = step, .applied = step, .seed = 1};
}

/* True on all ranks if DIRECTORY/name/entry exists. */
static bool exists(const char *name, const char *entry) {
    return on_all(access(titled("%s/%s/%s", directory, name, entry), F_OK) == 0);
}

static moert_status begin(moert_saver *saver, uint64_t step) {
    const moert_run_state state = state_of(step);
    return moert_saver_begin(saver, &state);
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

TEST(test_a_save_beside_training_writes_the_bytes_of_its_step) {
    static const char *const names[] = {"config.json", "state.json", "model.safetensors",
                                        "optimizer.safetensors", "manifest.json"};
    const moert_run_state third = state_of(3);
    open_checkpoint();
    moert_saver *held = open_saver("held", 0.0), *beside = open_saver("beside", 0.0);
    ASSERT_OK_ON_ALL(moert_saver_write(held, &third));
    ASSERT_OK_ON_ALL(moert_saver_begin(beside, &third));
    ASSERT_ON_ALL(moert_saver_is_busy(beside));
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 2)); /* a later step changes the weights */
    ASSERT_OK_ON_ALL(poll_to_end(beside));
    for (size_t i = 0; i < MOERT_COUNT(names) && test_rank == 0; i++) {
        size_t bytes, same;
        const char *one =
            read_file(titled("%s/held/step-00000003/%s", directory, names[i]), &bytes);
        const char *other =
            read_file(titled("%s/beside/step-00000003/%s", directory, names[i]), &same);
        assert_int_equal(bytes, same);
        assert_memory_equal(one, other, bytes);
    }
    const moert_saved saved = moert_saver_last(beside);
    assert_true(saved.step == 3 && saved.taken_s > 0.0 && strstr(saved.path, "step-00000003"));
}

TEST(test_a_full_disk_of_one_rank_fails_the_save_on_all_and_leaves_nothing) {
    open_checkpoint();
    moert_saver *saver = open_saver("full", 0.0);
    ASSERT_OK_ON_ALL(begin(saver, 1));
    ASSERT_OK_ON_ALL(moert_saver_wait(saver));
    for (int waits = 0; waits <= 1; waits++) {
        ASSERT_OK_ON_ALL(begin(saver, 1));
        disk_is_full = test_rank == test_ranks - 1;
        const moert_status status = waits ? moert_saver_wait(saver) : poll_to_end(saver);
        disk_is_full = false;
        ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_IO, "No space left on device");
        ASSERT_ON_ALL(exists("full", "step-00000001") && !exists("full", "step-00000001.tmp"));
    }
    ASSERT_OK_ON_ALL(begin(saver, 2));
    ASSERT_OK_ON_ALL(moert_saver_wait(saver));
    ASSERT_ON_ALL(exists("full", "step-00000002"));
}

TEST(test_a_save_keeps_to_its_rate_and_the_watchdog_sees_it_only_in_a_wait) {
    const double seconds = 0.5;
    open_checkpoint();
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

TEST(test_a_save_that_is_given_up_leaves_nothing) {
    open_checkpoint();
    moert_saver *saver = open_saver("dropped", 1000.0);
    ASSERT_OK_ON_ALL(begin(saver, 1));
    const uint64_t from = moert_clock_ns();
    while (!exists("dropped", "step-00000001.tmp/optimizer.safetensors"))
        ASSERT_OK_ON_ALL(moert_saver_poll(saver));
    release_owned(); /* destroys the saver */
    ASSERT_ON_ALL(moert_clock_ns() - from < 10000000000u);
    ASSERT_ON_ALL(!exists("dropped", "step-00000001.tmp") && !exists("dropped", "step-00000001"));
}

TEST(test_a_model_in_several_files_has_the_weights_of_one_file) {
    enum { FILE_BYTES = 40000 };
    open_checkpoint();
    const char *one = titled("%s/one", directory), *split = titled("%s/split", directory);
    ASSERT_OK_ON_ALL(moert_model_save(model, "{}", 0, one));
    ASSERT_OK_ON_ALL(moert_model_save(model, "{}", FILE_BYTES, split));
    if (test_rank != 0)
        return;
    size_t bytes;
    const moert_tensors *whole = open_tensors(one), *parts = open_tensors(split);
    const size_t files = count_files(split, ".safetensors");
    assert_true(files > 2 && moert_tensors_count(whole) == moert_tensors_count(parts));
    for (size_t i = 0; i < moert_tensors_count(whole); i++) {
        const moert_tensor *a = moert_tensors_at(whole, i), *b = moert_tensors_at(parts, i);
        assert_true(strcmp(a->name, b->name) == 0 && a->bytes == b->bytes);
        assert_memory_equal(a->data, b->data, a->bytes);
    }
    for (size_t i = 1; i <= files; i++) {
        moert_tensors *file =
            open_tensors(titled("%s/model-%05zu-of-%05zu.safetensors", split, i, files));
        size_t data = 0;
        for (size_t j = 0; j < moert_tensors_count(file); j++)
            data += moert_tensors_at(file, j)->bytes;
        assert_true(data <= FILE_BYTES || moert_tensors_count(file) == 1);
    }
    ASSERT_OK(moert_manifest_check(split, &bytes));
    assert_true(bytes > 0);
}

MPI_TESTS(open_all, close_context_and_directory)

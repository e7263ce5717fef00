// run: check=1,2
/*
 * If one rank runs out of host memory while a checkpoint or model is written or read, all ranks get
 * the same failure, whichever allocation fails. Nothing is freed twice, and no file is left. This
 * program replaces functions of the C library: one call of moert's code fails, on the last rank.
 * Allocations of jansson do not fail: its parser may then end the program.
 */
#include <unistd.h>

#include "comm/internal.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/mpi.h"
#include "train/save.h"
#include "train/values.h"

void *__libc_calloc(size_t count, size_t bytes);
void *__libc_malloc(size_t bytes);

static size_t calls, failing; /* failing: the number of the call that fails; 0: none */

static bool fails(void) {
    return failing != 0 && ++calls == failing;
}

/* Whether a caller is in this program, and not in a shared library. */
static bool is_here(const void *caller) {
    extern const char __executable_start[], etext[];
    return (uintptr_t)caller >= (uintptr_t)__executable_start &&
           (uintptr_t)caller < (uintptr_t)etext;
}

void *calloc(size_t count, size_t bytes) {
    return is_here(__builtin_return_address(0)) && fails() ? NULL : __libc_calloc(count, bytes);
}

void *malloc(size_t bytes) {
    return is_here(__builtin_return_address(0)) && fails() ? NULL : __libc_malloc(bytes);
}

/* Never fails in moert_error_keep(), which may do without the copy. */
char *strdup(const char *text) {
    const bool failed =
        text != moert_last_error() && is_here(__builtin_return_address(0)) && fails();
    char *copy = failed ? NULL : __libc_malloc(strlen(text) + 1);
    return copy != NULL ? strcpy(copy, text) : NULL;
}

static moert_model *model;
static moert_optimizer *optimizer;
static char saved[256], path[300]; /* of rank 0 */

/* Step 1 of the directory `saved`. */
static moert_status save_checkpoint(bool beside) {
    const moert_run_state state = {
        .step = 1, .seed = 1, .skipped = 1, .skipped_in_row = 1}; /* removes no older checkpoint */
    const moert_saver_options options = {.optimizer = optimizer,
                                         .config_text = "{}",
                                         .directory = saved,
                                         .keep = {.last = 1},
                                         .beside = beside};
    moert_saver *saver = NULL;
    moert_status status = moert_comm_agree(test_comm, moert_saver_create(&options, &saver));
    if (status == MOERT_OK && beside)
        status = moert_saver_begin(saver, &state);
    if (status == MOERT_OK)
        status = beside ? moert_saver_wait(saver) : moert_saver_write(saver, &state);
    char *message = moert_error_keep();
    moert_saver_destroy(saver);
    return moert_error_first(message, status, MOERT_OK);
}

static moert_status save_held(void) {
    return save_checkpoint(false);
}

static moert_status save_beside(void) {
    return save_checkpoint(true);
}

static moert_status save_model(void) {
    return moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 0, NULL}, path);
}

static moert_status save_split_model(void) {
    return moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 30000, NULL}, path);
}

static moert_status save_gradients(void) {
    return moert_gradients_save(model, path);
}

static moert_status load_checkpoint(void) {
    moert_run_state state;
    return moert_checkpoint_load(optimizer, path, NULL, &state);
}

/* True on all ranks if neither `path` nor its temporary name exists. */
static bool is_clean(void) {
    char temporary[sizeof path + 4];
    snprintf(temporary, sizeof temporary, "%s.tmp", path);
    return on_all(access(path, F_OK) != 0 && access(temporary, F_OK) != 0);
}

/* Lets each allocation (without --all: each seventh) fail in turn, until `run` needs fewer
 * allocations than that. */
static void check_each(moert_status (*run)(void), bool writes) {
    enum { MOST = 5000 };
    const size_t victim = test_ranks - 1;
    const char *all = getenv("TEST_ALL");
    const size_t stride = all != NULL && strcmp(all, "1") == 0 ? 1 : 7;
    for (size_t k = 1; k < MOST; k += stride) {
        if (writes)
            ASSERT_OK_ON_ALL(test_rank == 0 ? moert_remove_tree(path) : MOERT_OK);
        calls = 0;
        failing = test_rank == victim ? k : 0;
        const moert_status status = run();
        const bool failed = test_rank == victim && calls >= k;
        failing = 0;
        if (on_all(test_rank != victim || !failed)) {
            ASSERT_OK_ON_ALL(status);
            return;
        }
        if (!on_all(status == MOERT_ERROR_MEMORY))
            fail_msg("allocation %zu: %s: %s", k, moert_status_name(status), moert_last_error());
        ASSERT_ON_ALL(!writes || is_clean());
    }
    fail_msg("needs more than %d allocations", MOST);
}

TEST(test_each_allocation_fails_once) {
    moert_model_config config = golden_config("mixtral-tiny");
    config.layers = 1;
    model = open_model(open_mesh(0), &config);
    snprintf(saved, sizeof saved, "%s", in_directory("saved"));
    ASSERT_OK_ON_ALL(moert_comm_broadcast(test_comm, 0, saved, sizeof saved));
    snprintf(path, sizeof path, "%s/step-00000001", saved);
    ASSERT_OK_ON_ALL(test_rank == 0 ? moert_make_directories(saved) : MOERT_OK);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 1));
    ASSERT_OK_ON_ALL(moert_optimizer_create(
        model, &(moert_optimizer_options){.beta1 = 0.9, .beta2 = 0.9}, &optimizer));
    check_each(save_gradients, true);
    check_each(save_model, true);
    check_each(save_split_model, true);
    check_each(save_held, true);
    check_each(save_beside, true);
    check_each(load_checkpoint, false);
    moert_optimizer_destroy(optimizer);
}

MPI_TESTS(open_context_and_directory, close_context_and_directory)

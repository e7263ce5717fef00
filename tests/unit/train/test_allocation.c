// run: check=2 all=1,2
/*
 * If one rank runs out of host memory while ranks create an object, or write or read a checkpoint
 * or model, all ranks fail alike, whichever allocation fails. No memory is freed twice, and no file
 * is left. This program replaces functions of the C library: one allocation by moert's code fails,
 * on the last rank. Allocations by jansson never fail, because jansson's parser may end the program
 * after a failure.
 */
#include <unistd.h>

#include "base/config.h"
#include "comm/internal.h"
#include "exchange/exchange.h"
#include "exchange/peers.h"
#include "exchange/window/flags.h"
#include "io/durable.h"
#include "support/files.h"
#include "support/mpi.h"
#include "support/suite.h"
#include "train/save.h"
#include "train/values.h"

void *__libc_calloc(size_t count, size_t bytes);
void *__libc_malloc(size_t bytes);

static size_t calls, failing; /* failing: the number of the call that fails; 0: none */
static bool only_arrays;      /* only calls from moert_alloc() count */

/* Whether the call from address `caller` fails. Only calls from this program fail, not those from
 * shared libraries. */
static bool fails(const char *caller) {
    extern const char __executable_start[], etext[];
    /* the code of moert_alloc() has less than 160 bytes */
    const char *alloc = (const char *)(uintptr_t)&moert_alloc;
    const char *begin = only_arrays ? alloc : __executable_start;
    const char *end = only_arrays ? alloc + 160 : etext;
    return failing != 0 && caller >= begin && caller < end && ++calls == failing;
}

void *calloc(size_t count, size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(count, bytes);
}

void *malloc(size_t bytes) {
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

/* Copies of the last error never fail, because moert_error_keep() works without the copy. */
char *strdup(const char *text) {
    const bool failed = text != moert_last_error() && fails(__builtin_return_address(0));
    char *copy = failed ? NULL : __libc_malloc(strlen(text) + 1);
    return copy != NULL ? strcpy(copy, text) : NULL;
}

static moert_model_config config, one_layer;
static moert_model *whole, *model; /* models of `config` and of `one_layer` */
static moert_optimizer *optimizer; /* of `model` */
static char saved[256], path[300]; /* of rank 0 */

static const moert_optimizer_options adamw = {.beta1 = 0.9, .beta2 = 0.9, .epsilon = 1e-8};

/* ---- objects, created and destroyed ---- */

#define OBJECT(name, type, ...)                                                                    \
    static moert_status create_##name(void) {                                                      \
        moert_##type *made;                                                                        \
        MOERT_TRY(moert_##type##_create(__VA_ARGS__, &made));                                      \
        moert_##type##_destroy(made);                                                              \
        return MOERT_OK;                                                                           \
    }
OBJECT(shared, shared, test_comm, 100)
OBJECT(flags, flags, test_device, test_comm, moert_memory_of(test_device), 1000000000)
OBJECT(context, context, MPI_COMM_WORLD, NULL)
OBJECT(staged, exchange, test_device, test_comm, MOERT_EXCHANGE_STAGED)
OBJECT(window, exchange, test_device, test_comm, MOERT_EXCHANGE_WINDOW)
OBJECT(mesh, mesh, test_context, 0)
OBJECT(groups, mesh, test_context, 1) /* EP groups of one rank; the failure is in one group */
OBJECT(model, model, test_mesh, &config)

/* Without MOERT_SYNC=device, creating peers would fall back to host memory instead of failing. */
static moert_status create_peers(void) {
    moert_peers *made = NULL;
    set_variable("MOERT_SYNC", "device");
    const moert_status status = moert_peers_create(test_device, test_comm, &made);
    set_variable("MOERT_SYNC", NULL);
    moert_peers_destroy(made);
    return status;
}

/* Creates an optimizer and lets all ranks agree on the status, as the trainer does. */
static moert_status create_optimizer(void) {
    moert_optimizer *made = NULL;
    const moert_status status = agreed(moert_optimizer_create(whole, &adamw, &made));
    moert_optimizer_destroy(made);
    return status;
}

/* ---- files ---- */

/* Saves step 1 in the directory `saved`. */
static moert_status save_checkpoint(bool beside) {
    const moert_run_state state = {
        .step = 1, .seed = 1, .skipped = 1, .skipped_in_row = 1}; /* step 1: no older checkpoint */
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

/* Wraps a call in a function without arguments. */
#define OPERATION(name, call)                                                                      \
    static moert_status name(void) {                                                               \
        return call;                                                                               \
    }
OPERATION(save_held, save_checkpoint(false))
OPERATION(save_beside, save_checkpoint(true))
OPERATION(save_model, moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 0, NULL}, path))
OPERATION(save_split_model,
          moert_model_save(model, &(moert_export){"{}", MOERT_FILE_F32, 30000, NULL}, path))
OPERATION(save_gradients, moert_gradients_save(model, path))

static moert_status load_checkpoint(void) {
    moert_run_state state;
    const moert_status status = agreed(moert_checkpoint_state(path, &state));
    return status == MOERT_OK ? moert_checkpoint_load(optimizer, path, NULL) : status;
}

/* ---- the failures ---- */

/* Whether all ranks report the failure of the last rank, and no rank has left a file that it
 * wrote. */
static bool failed_alike(moert_status status, bool writes) {
    const bool clean = access(path, F_OK) != 0 && access(titled("%s.tmp", path), F_OK) != 0;
    if (!only_arrays)
        return on_all(status == MOERT_ERROR_MEMORY && (!writes || clean));
    const char *rank = titled("rank %zu (", test_ranks - 1);
    return on_all(status == MOERT_ERROR_MEMORY ? strstr(moert_last_error(), rank) != NULL
                                               : status == MOERT_ERROR_UNSUPPORTED &&
                                                     strstr(moert_last_error(), "host memory"));
}

/* Lets each `stride`-th allocation fail in turn, until `run` needs fewer allocations than that. */
static void check_each(const char *name, moert_status (*run)(void), bool writes, size_t stride) {
    enum { MOST = 5000 };
    const bool is_victim = test_rank == test_ranks - 1;
    for (size_t k = 1; k < MOST; k += stride) {
        if (writes)
            ASSERT_OK_ON_ALL(test_rank == 0 ? moert_remove_tree(path) : MOERT_OK);
        calls = 0;
        failing = is_victim ? k : 0;
        const moert_status status = run();
        const bool failed = is_victim && calls >= k;
        failing = 0;
        if (on_all(!is_victim || !failed)) {
            ASSERT_OK_ON_ALL(status);
            return;
        }
        if (!failed_alike(status, writes))
            fail_msg("%s, allocation %zu: %s: %s", name, k, moert_status_name(status),
                     moert_last_error());
    }
    fail_msg("%s: more than %d allocations", name, MOST);
}

TEST(test_constructors_fail_alike_on_all_ranks) {
    static const struct {
        const char *name;
        moert_status (*create)(void);
    } constructors[] = {{"shared memory", create_shared}, {"flags", create_flags},
                        {"context", create_context},      {"staged", create_staged},
                        {"window", create_window},        {"mesh", create_mesh},
                        {"groups", create_groups},        {"peers", create_peers},
                        {"model", create_model},          {"optimizer", create_optimizer}};
    if (test_ranks == 1)
        SKIP("another rank must report the failure");
    config = golden_config("qwen3-tiny");
    whole = open_model(test_mesh, &config);
    only_arrays = true;
    for (size_t i = 0; i < MOERT_COUNT(constructors); i++) {
        /* the first create also makes the objects that a process makes once */
        ASSERT_OK_ON_ALL(constructors[i].create());
        check_each(constructors[i].name, constructors[i].create, false, 1);
    }
}

TEST(test_writers_and_readers_fail_alike_and_leave_no_file) {
    only_arrays = false;
    one_layer = golden_config("mixtral-tiny");
    one_layer.layers = 1;
    model = open_model(open_mesh(0), &one_layer);
    snprintf(saved, sizeof saved, "%s", in_directory("saved"));
    ASSERT_OK_ON_ALL(moert_comm_broadcast(test_comm, 0, saved, sizeof saved));
    snprintf(path, sizeof path, "%s/step-00000001", saved);
    ASSERT_OK_ON_ALL(test_rank == 0 ? moert_make_directories(saved) : MOERT_OK);
    ASSERT_OK_ON_ALL(moert_model_initialize(model, 1));
    optimizer = open_optimizer(model, &adamw);
    const size_t stride = suite_skips(true) ? 7 : 1;
    check_each("gradients", save_gradients, true, stride);
    check_each("model", save_model, true, stride);
    check_each("split model", save_split_model, true, stride);
    check_each("checkpoint", save_held, true, stride);
    check_each("checkpoint beside training", save_beside, true, stride);
    check_each("loading", load_checkpoint, false, stride);
}

/* Fixes the engine and turns the cache off. Otherwise calls could succeed in spite of a failed
 * allocation: moert would choose another engine, or compute a value that it could not read from the
 * cache. */
static int begin(void **state) {
    set_variable("MOERT_EXCHANGE", "staged");
    set_variable("MOERT_CACHE_DIR", "off");
    return open_test_mesh(state) != 0 || make_test_directory(state) != 0;
}

static int end(void **state) {
    return remove_test_directory(state) != 0 || close_test_mesh(state) != 0;
}

MPI_TESTS(begin, end)

// run: check=2
/*
 * If one rank runs out of host memory, a collective constructor fails on all ranks with the same
 * message, whichever allocation fails. This program replaces calloc() of the C library: one call
 * fails, on rank 1, counting only calls from moert_alloc().
 */
#include "base/config.h"
#include "base/memory.h"
#include "exchange/exchange.h"
#include "exchange/window/flags.h"
#include "support/mpi.h"
#include "train/optimizer.h"

void *__libc_calloc(size_t count, size_t bytes);

static size_t calls, failing; /* failing: the number of the call that fails; 0: none */

/* True if the caller is moert_alloc(), whose code is shorter than 160 bytes. */
static bool is_of_moert(const char *caller) {
    const char *begin = (const char *)(uintptr_t)&moert_alloc;
    return caller >= begin && caller < begin + 160;
}

void *calloc(size_t count, size_t bytes) {
    if (failing != 0 && is_of_moert(__builtin_return_address(0)) && ++calls == failing)
        return NULL;
    return __libc_calloc(count, bytes);
}

/* Collectively creates and destroys one object. */
typedef moert_status make_and_destroy(void);

static moert_status shared(void) {
    moert_shared *made;
    MOERT_TRY(moert_shared_create(test_comm, 100, &made));
    moert_shared_destroy(made);
    return MOERT_OK;
}

static moert_status flags(void) {
    moert_flags *made;
    MOERT_TRY(moert_flags_create(test_device, test_comm, moert_memory_of(test_device), 1000000000,
                                 &made));
    moert_flags_destroy(made);
    return MOERT_OK;
}

static moert_status context(void) {
    moert_context *made;
    MOERT_TRY(moert_context_create(MPI_COMM_WORLD, NULL, &made));
    moert_context_destroy(made);
    return MOERT_OK;
}

static moert_status exchange(unsigned engine) {
    moert_exchange *made;
    MOERT_TRY(moert_exchange_create(test_device, test_comm, engine, &made));
    moert_exchange_destroy(made);
    return MOERT_OK;
}

static moert_status staged(void) {
    return exchange(MOERT_EXCHANGE_STAGED);
}

static moert_status window(void) {
    return exchange(MOERT_EXCHANGE_WINDOW);
}

static moert_status mesh(void) {
    moert_mesh *made;
    MOERT_TRY(moert_mesh_create(test_context, 0, &made));
    moert_mesh_destroy(made);
    return MOERT_OK;
}

/* Two groups of experts, of which only one has the failure. */
static moert_status groups(void) {
    moert_mesh *made;
    MOERT_TRY(moert_mesh_create(test_context, 1, &made));
    moert_mesh_destroy(made);
    return MOERT_OK;
}

static moert_model_config config;

static moert_status model(void) {
    moert_model *made;
    MOERT_TRY(moert_model_create(test_mesh, &config, &made));
    moert_model_destroy(made);
    return MOERT_OK;
}

static moert_model *whole_model;

/* As the trainer does, which agrees on the status. */
static moert_status optimizer(void) {
    const moert_optimizer_options options = {.beta1 = 0.9, .beta2 = 0.95, .epsilon = 1e-8};
    moert_optimizer *made = NULL;
    const moert_status status = agreed(moert_optimizer_create(whole_model, &options, &made));
    moert_optimizer_destroy(made);
    return status;
}

/* Lets each allocation fail in turn, until `make` needs fewer allocations than that. */
static void check_each(const char *name, make_and_destroy *make) {
    enum { MOST = 2000 };
    ASSERT_OK_ON_ALL(make()); /* creates objects that are made only once per process */
    for (size_t k = 1; k < MOST; k++) {
        calls = 0;
        failing = test_rank == 1 ? k : 0;
        const moert_status status = make();
        const bool failed = test_rank == 1 && calls >= k;
        failing = 0;
        if (on_all(test_rank != 1 || !failed)) {
            ASSERT_OK_ON_ALL(status);
            return;
        }
        const bool named =
            status == MOERT_ERROR_MEMORY
                ? strstr(moert_last_error(), "rank 1 (") != NULL
                : status == MOERT_ERROR_UNSUPPORTED && strstr(moert_last_error(), "host memory");
        if (!on_all(named))
            fail_msg("%s, allocation %zu: status %d, %s", name, k, status, moert_last_error());
    }
    fail_msg("%s: more than %d allocations", name, MOST);
}

TEST(test_constructors_fail_alike_on_all_ranks) {
    static const struct {
        const char *name;
        make_and_destroy *make;
    } constructors[] = {{"shared memory", shared}, {"flags", flags},   {"context", context},
                        {"staged", staged},        {"window", window}, {"mesh", mesh},
                        {"groups", groups},        {"model", model},   {"optimizer", optimizer}};
    config = golden_config("qwen3-tiny");
    whole_model = open_model(test_mesh, &config);
    for (size_t i = 0; i < MOERT_COUNT(constructors); i++)
        check_each(constructors[i].name, constructors[i].make);
}

/* The engine is fixed and the cache is off: the choice of an engine passes over those that find no
 * memory, and what the cache finds no memory for is computed anew. */
static int begin(void **state) {
    set_variable("MOERT_EXCHANGE", "staged");
    set_variable("MOERT_CACHE_DIR", "off");
    return open_test_mesh(state);
}

MPI_TESTS(begin, close_test_mesh)

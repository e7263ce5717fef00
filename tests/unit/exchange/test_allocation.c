// run: np=2
/*
 * If one rank runs out of host memory, a collective constructor fails on all ranks with the same
 * message, whichever allocation fails. This program replaces calloc() of the C library: one call
 * fails, on rank 1, counting only calls from moert_alloc().
 */
#include "base/memory.h"
#include "exchange/window/flags.h"
#include "support/mpi.h"

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

/* Lets each allocation fail in turn, until `make` needs fewer allocations than that. */
static void check_each(make_and_destroy *make) {
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
        assert_true(on_all(status == MOERT_ERROR_MEMORY));
        assert_non_null(strstr(moert_last_error(), "rank 1 ("));
    }
    fail_msg("needs more than %d allocations", MOST);
}

TEST(test_shared_memory_fails_alike_on_all_ranks) {
    check_each(shared);
}

TEST(test_flags_fail_alike_on_all_ranks) {
    check_each(flags);
}

MPI_TESTS(open_test_context, close_test_context)

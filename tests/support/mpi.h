/*
 * Tests on several ranks. If an assertion failed on only one rank, the other ranks would wait
 * forever in their next collective. Therefore the ranks first agree on a verdict, and then every
 * rank asserts the verdict.
 */
#pragma once

#include "base/tree.h"
#include "comm/comm.h"
#include "context/context.h"
#include "model/model.h"
#include "support/test.h"
#include "train/optimizer.h"

/* All ranks of the job; set by mpi_tests_begin(). */
extern moert_comm *test_comm;
extern size_t test_rank, test_ranks;

/* main() of tests on several ranks. Rank 0 prints all results, other ranks print failures on
 * stderr. */
#define MPI_TESTS(begin, end)                                                                      \
    int main(int count, char **arguments) {                                                        \
        return mpi_tests_begin(count, arguments) ? mpi_tests_end(run_file(__FILE__, begin, end))   \
                                                 : 1;                                              \
    }
bool mpi_tests_begin(int count, char **arguments);
int mpi_tests_end(int failed);

/* Group fixture: a context over all ranks, whose device is test_device. */
extern moert_context *test_context;
int open_test_context(void **state);
int close_test_context(void **state);
/* Group fixture: test_context, and a temporary directory of this rank (files.h). */
int open_context_and_directory(void **state);
int close_context_and_directory(void **state);

/* Group fixture: test_context, and a mesh of all ranks. */
extern moert_mesh *test_mesh;
int open_test_mesh(void **state);
int close_test_mesh(void **state);

/* Lets new meshes see the ranks of test_context on `hosts` hosts, rank by rank in turn; 1: all on
 * one host again. */
void deal_ranks(size_t hosts);

/* open_mesh() creates another mesh, with `ep` ranks per set of experts (0: all), open_exact_mesh()
 * one with exact replicas. open_model() creates a model without weights, open_optimizer() the state
 * of AdamW. All these objects are
 * destroyed when the test ends. */
moert_mesh *open_mesh(size_t ep);
moert_mesh *open_exact_mesh(size_t ep);
moert_model *open_model(moert_mesh *mesh, const moert_model_config *config);
/* Returns the run that open_model() has created for the model. */
moert_run *run_of(const moert_model *model);
moert_optimizer *open_optimizer(moert_model *model, const moert_optimizer_options *options);
/* Reads the config.json of a golden model. The config is freed when the test ends. */
moert_model_config golden_config(const char *name);

/* True if `mine` is true on all ranks. Collective. */
bool on_all(bool mine);

/* The assertions of test.h, which fail on all ranks if they fail on one. Collective. */
#define ASSERT_ON_ALL(condition) assert_true(on_all(condition))
#define ASSERT_OK_ON_ALL(call)   ASSERT_OK(agreed(call))
#define ASSERT_FAILS_ON_ALL(call, status, text)                                                    \
    assert_true(on_all(failed_with((call), (status), (text))))
/* Checks that a wrong use of the library fails on all ranks. */
#define ASSERT_REFUSED(call, text) ASSERT_FAILS_ON_ALL(call, MOERT_ERROR_USAGE, text)

/* Returns on all ranks the status of the lowest rank that failed, or MOERT_OK. Collective. */
moert_status agreed(moert_status mine);

/* Return the first bytes or floats of a buffer (with or without a guard), and whether n floats of
 * two buffers have the same bits. Not collective. */
void *read_bytes(const moert_buffer *buffer, size_t bytes);
float *read_floats(const moert_buffer *buffer, size_t n);
bool same_floats(const moert_buffer *a, const moert_buffer *b, size_t n);

/* Replaces values[n] by their sums over all ranks. Collective. */
void sum_over_ranks(double *values, size_t n);

/* Draws rows of n random values for the nodes of a rank's span (base/tree.h). Magnitudes span 11
 * binary orders, so the sum depends on the order of addition. */
float *draw_nodes(moert_span span, size_t n, uint64_t seed, size_t rank);
/* Returns sum[n] of the nodes that draw_nodes() gives all ranks, computed on the host. spans[R] are
 * the ranks' spans. */
float *sum_of_nodes(const moert_span *spans, size_t n, uint64_t seed);

/* A value that identifies its sender, its receiver and its index. */
static inline uint64_t mpi_value(size_t from, size_t to, size_t index) {
    return from * 1000003 + to * 1009 + index;
}

/* Starts and ends tests on several ranks, and lets the ranks agree on a verdict. */
#include "support/mpi.h"

#include "base/phase.h"
#include "base/rng.h"
#include "comm/internal.h"
#include "support/files.h"

enum { MOST_RANKS = 256 };

moert_comm *test_comm;
size_t test_rank, test_ranks;
moert_context *test_context;
moert_mesh *test_mesh;

/* cmocka's standard format prints failures on stderr, and all other output on stdout, which is
 * discarded. */
static bool be_quiet(void) {
    cmocka_set_message_output(CM_OUTPUT_STDOUT);
    return unsetenv("CMOCKA_MESSAGE_OUTPUT") == 0 && freopen("/dev/null", "w", stdout) != NULL;
}

bool mpi_tests_begin(int count, char **arguments) {
    if (moert_comm_init(&count, &arguments) != MOERT_OK ||
        moert_comm_create(moert_comm_world(), &test_comm) != MOERT_OK) {
        fprintf(stderr, "%s\n", moert_last_error());
        return false;
    }
    test_rank = moert_comm_rank(test_comm);
    test_ranks = moert_comm_size(test_comm);
    return test_rank == 0 || be_quiet();
}

int mpi_tests_end(int failed) {
    moert_comm_destroy(test_comm);
    moert_comm_finalize();
    return failed;
}

int open_test_context(void **state) {
    (void)state;
    if (moert_context_create(MPI_COMM_WORLD, NULL, &test_context) != MOERT_OK) {
        print_error("%s\n", moert_last_error());
        return -1;
    }
    test_device = moert_context_device(test_context);
    return 0;
}

/* Fails if a wait was begun but not ended, or ended but not begun. */
int close_test_context(void **state) {
    (void)state;
    moert_context_destroy(test_context);
    test_device = NULL;
    if (moert_phase_waiting() != 0)
        print_error("%d waits have begun and not ended\n", moert_phase_waiting());
    return moert_phase_waiting() != 0;
}

void deal_ranks(size_t hosts) {
    for (size_t r = 0; r < test_ranks; r++)
        moert_context_comm(test_context)->peers[r].node = r % hosts;
}

int open_context_and_directory(void **state) {
    return make_test_directory(state) != 0 || open_test_context(state) != 0;
}

int close_context_and_directory(void **state) {
    return close_test_context(state) != 0 || remove_test_directory(state) != 0;
}

int open_test_mesh(void **state) {
    if (open_test_context(state) != 0)
        return -1;
    return moert_mesh_create(test_context, 0, &test_mesh) == MOERT_OK ? 0 : -1;
}

int close_test_mesh(void **state) {
    moert_mesh_destroy(test_mesh);
    return close_test_context(state);
}

moert_mesh *open_mesh(size_t ep) {
    moert_mesh *mesh;
    ASSERT_OK(moert_mesh_create(test_context, ep, &mesh));
    return owned(mesh, moert_mesh_destroy);
}

moert_mesh *open_exact_mesh(size_t ep) {
    moert_mesh *mesh;
    ASSERT_OK(moert_mesh_create_exact(test_context, ep, &mesh));
    return owned(mesh, moert_mesh_destroy);
}

/* The last models of open_model(), and their runs. */
static struct {
    const moert_model *model[16];
    moert_run *run[16];
    size_t count;
} runs;

moert_model *open_model(moert_mesh *mesh, const moert_model_config *config) {
    moert_model *model;
    ASSERT_OK(moert_model_create(mesh, config, &model));
    owned(model, moert_model_destroy);
    runs.model[runs.count % MOERT_COUNT(runs.model)] = model;
    moert_run **run = &runs.run[runs.count++ % MOERT_COUNT(runs.run)];
    ASSERT_OK(moert_run_create(model, run));
    owned(*run, moert_run_destroy);
    return model;
}

moert_run *run_of(const moert_model *model) {
    for (size_t i = runs.count; i-- > 0;)
        if (runs.model[i % MOERT_COUNT(runs.model)] == model)
            return runs.run[i % MOERT_COUNT(runs.run)];
    fail_msg("open_model() has not opened this model");
    return NULL;
}

moert_optimizer *open_optimizer(moert_model *model, const moert_optimizer_options *options) {
    moert_optimizer *optimizer;
    ASSERT_OK_ON_ALL(moert_optimizer_create(model, options, &optimizer));
    return owned(optimizer, moert_optimizer_destroy);
}

moert_model_config golden_config(const char *name) {
    moert_model_config config;
    ASSERT_OK(moert_model_config_read(titled("tests/golden/model/%s", name), &config));
    owned(config.text, free);
    return config;
}

bool on_all(bool mine) {
    bool all[MOST_RANKS] = {false}, verdict = test_ranks <= MOST_RANKS;
    if (!verdict || moert_comm_allgather(test_comm, &mine, sizeof mine, all) != MOERT_OK)
        return false;
    for (size_t r = 0; r < test_ranks; r++)
        verdict = verdict && all[r];
    return verdict;
}

moert_status agreed(moert_status mine) {
    return moert_comm_agree(test_comm, mine);
}

void *read_bytes(const moert_buffer *buffer, size_t bytes) {
    void *content = test_alloc(bytes);
    ASSERT_OK(moert_buffer_read(buffer, 0, content, bytes));
    return content;
}

float *read_floats(const moert_buffer *buffer, size_t n) {
    return read_bytes(buffer, n * sizeof(float));
}

bool same_floats(const moert_buffer *a, const moert_buffer *b, size_t n) {
    return memcmp(read_floats(a, n), read_floats(b, n), n * sizeof(float)) == 0;
}

void sum_over_ranks(double *values, size_t n) {
    double *all = test_alloc(test_ranks * n * sizeof *all);
    ASSERT_OK(moert_comm_allgather(test_comm, values, n * sizeof *values, all));
    memset(values, 0, n * sizeof *values);
    for (size_t i = 0; i < test_ranks * n; i++)
        values[i % n] += all[i];
}

float *draw_nodes(moert_span span, size_t n, uint64_t seed, size_t rank) {
    moert_tree_node nodes[MOERT_TREE_MAX_NODES];
    const size_t values = moert_tree_nodes(span, nodes) * n;
    /* n more floats, so that a span without nodes has room for a sum, too */
    float *rows = test_alloc((values + n) * sizeof *rows);
    for (size_t i = 0; i < values; i++)
        rows[i] = (float)ldexp(moert_rng_uniform(seed, rank, i) - 0.5, (int)(i * 5 % 11));
    return rows;
}

float *sum_of_nodes(const moert_span *spans, size_t n, uint64_t seed) {
    moert_tree_node *nodes = test_alloc(test_ranks * MOERT_TREE_MAX_NODES * sizeof *nodes);
    float **rows = test_alloc(test_ranks * MOERT_TREE_MAX_NODES * sizeof *rows),
          *sum = test_alloc(n * sizeof *sum);
    size_t count = 0;
    for (size_t r = 0; r < test_ranks; r++) {
        const size_t own = moert_tree_nodes(spans[r], nodes + count);
        float *values = draw_nodes(spans[r], n, seed, r);
        for (size_t i = 0; i < own; i++)
            rows[count++] = values + i * n;
    }
    moert_tree_sum_nodes(spans[0].total, nodes, rows, count, sum, n);
    return sum;
}

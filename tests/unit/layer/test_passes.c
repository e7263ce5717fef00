// run: check=1,2 all=3,4,2san
/* Several passes of a layer in flight give the bits of passes one after the other; passes that are
 * destroyed without a backward leave nothing. */
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

enum { MICRO = 4 };

/* Returns a copy of `source`, rotated by `shift` elements. */
static moert_buffer *upload_shifted(const moert_buffer *source, size_t n, size_t shift) {
    const float *values = download_floats(source, n);
    float *shifted = test_alloc((n + 1) * sizeof *shifted);
    for (size_t i = 0; i < n; i++)
        shifted[i] = values[(i + shift) % n];
    return upload_floats(shifted, n);
}

/* Makes the micro-batches of a step: runs of one layer, each with its own x and dy. */
static void open_micro_batches(moert_layer_options options, layer_run micro[MICRO]) {
    const layer_run run = layer_run_of(options);
    const size_t n = run.batch.tokens * options.hidden;
    for (size_t m = 0; m < MICRO; m++) {
        micro[m] = run;
        micro[m].x = upload_shifted(run.x, n, 3 * m);
        micro[m].dy = upload_shifted(run.dy, n, 7 * m);
        micro[m].y = unset_floats(n);
        micro[m].dx = unset_floats(n);
    }
}

/* Runs `count` micro-batches; their backwards run in the order `order`. With `interleaved`, all
 * forwards run before the first backward. */
static void run_step(layer_run micro[MICRO], const size_t order[], size_t count, bool interleaved) {
    for (size_t m = 0; m < count && interleaved; m++)
        ASSERT_OK_ON_ALL(layer_run_forward(&micro[m]));
    for (size_t i = 0; i < count; i++) {
        layer_run *run = &micro[order[i]];
        if (!interleaved)
            ASSERT_OK_ON_ALL(layer_run_forward(run));
        ASSERT_OK_ON_ALL(layer_run_backward(run, i, count));
        layer_run_end(run);
    }
}

static bool same_results(const layer_run a[MICRO], const layer_run b[MICRO], size_t count) {
    bool same = true;
    for (size_t m = 0; m < count; m++)
        same = same && layer_run_same(&a[m], &b[m]);
    return same;
}

static void compare(moert_layer_options options, bool deferred) {
    static const struct {
        size_t count, order[MICRO];
    } rows[] = {{2, {0, 1}}, {4, {0, 1, 2, 3}}, {4, {2, 0, 3, 1}}};
    layer_run alone[MICRO], together[MICRO];
    options.deferred_wgrad = deferred;
    open_micro_batches(options, alone);
    open_micro_batches(options, together);
    for (size_t r = 0; r < MOERT_COUNT(rows); r++) {
        run_step(alone, rows[r].order, rows[r].count, false);
        run_step(together, rows[r].order, rows[r].count, true);
        ASSERT_ON_ALL(same_results(alone, together, rows[r].count));
    }
}

TEST(test_passes_in_flight_have_the_bits_of_passes_in_turn) {
    moert_layer_options options = layer_form(40, 24);
    options.shared_intermediate = 8;
    options.expert_biases = options.router_bias = true;
    compare(options, false);
    compare(options, true);
}

TEST(test_passes_in_flight_have_the_same_bits_in_low_precision) {
    for (moert_precision p = MOERT_PRECISION_BF16; p <= MOERT_PRECISION_NVFP4; p++) {
        moert_layer_options options = layer_form(64, 32);
        options.precision = p;
        compare(options, p != MOERT_PRECISION_MXFP8);
    }
}

TEST(test_destroyed_passes_leave_nothing) {
    static const size_t order[] = {0, 1};
    layer_run never[MICRO], often[MICRO];
    open_micro_batches(layer_form(20, 12), never);
    open_micro_batches(layer_form(20, 12), often);
    for (size_t round = 0; round < 3; round++) {
        for (size_t m = 0; m < MICRO; m++)
            ASSERT_OK_ON_ALL(layer_run_forward(&often[m]));
        for (size_t m = 0; m < MICRO; m++)
            layer_run_end(&often[m]);
    }
    const moert_layer *layer = often[0].layer;
    /* there are no more passes than MICRO, because new passes reuse the memory of destroyed ones */
    ASSERT_ON_ALL(layer->passes->count == MICRO);
    run_step(never, order, 2, true);
    run_step(often, order, 2, true);
    ASSERT_ON_ALL(same_results(never, often, 2));
    ASSERT_ON_ALL(layer->passes->count == MICRO);
}

/* Runs a forward and returns a hash of the experts' rows. */
static uint64_t hash_rows(layer_run *run) {
    moert_probe *probe;
    uint64_t hash = 0;
    ASSERT_OK_ON_ALL(moert_probe_create(run->layer->local_experts, &probe));
    probe->takes = true;
    moert_layer_set_probe(run->layer, probe);
    ASSERT_OK_ON_ALL(layer_run_forward(run));
    moert_layer_set_probe(run->layer, NULL);
    for (size_t s = 0; s < run->layer->local_experts; s++)
        hash ^= probe->hash[MOERT_PROBE_ROWS * run->layer->local_experts + s];
    moert_probe_destroy(probe);
    return hash;
}

TEST(test_a_probe_sees_a_single_row) {
    const uint32_t end = 1;
    moert_layer_options options = layer_form(20, 12);
    options.router.topk = 1;
    layer_run run = layer_run_of(options);
    run.batch.total_sequences = 1;
    run.batch.first_sequence = test_rank > 0;
    run.batch.sequences = run.batch.tokens = test_rank == 0;
    run.batch.ends = upload(&end, sizeof end);
    run.x = upload_floats(random_floats(20, 1.0f, 1), 20);
    const uint64_t first = hash_rows(&run), again = hash_rows(&run);
    run.x = upload_floats(random_floats(20, 1.0f, 2), 20);
    const uint64_t other = hash_rows(&run);
    const size_t rows = run.pass->plan->plan->rows;
    ASSERT_ON_ALL(first == again && (rows == 0 || first != other));
    layer_run_end(&run);
}

MPI_TESTS(open_test_context, close_test_context)

// run: check=1,2 all=3,4,2san
/* Several passes of a layer in flight give the bits of passes one after the other; passes that are
 * destroyed without a backward leave nothing. */
#include "base/memory.h"
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

enum { MICRO = 4 };

/* The micro-batches of a step, each with its own x and dy. */
typedef struct micro_batches {
    layer_run run;
    size_t n; /* elements of x on this rank */
    struct {
        moert_buffer *x, *y, *dy, *dx;
        moert_pass *pass;
    } micro[MICRO];
} micro_batches;

/* `source` shifted by `shift` elements */
static moert_buffer *upload_shifted(const moert_buffer *source, size_t n, size_t shift) {
    const float *values = download_floats(source, n);
    float *shifted = test_alloc((n + 1) * sizeof *shifted);
    for (size_t i = 0; i < n; i++)
        shifted[i] = values[(i + shift) % n];
    return upload_floats(shifted, n);
}

static micro_batches open_micro_batches(moert_layer_options options) {
    micro_batches b = {.run = layer_run_of(options)};
    b.n = b.run.batch.tokens * options.hidden;
    for (size_t m = 0; m < MICRO; m++) {
        b.micro[m].x = upload_shifted(b.run.x, b.n, 3 * m);
        b.micro[m].dy = upload_shifted(b.run.dy, b.n, 7 * m);
        b.micro[m].y = unset_floats(b.n);
        b.micro[m].dx = unset_floats(b.n);
    }
    return b;
}

static void forward(micro_batches *b, size_t m) {
    ASSERT_OK_ON_ALL(moert_layer_forward(b->run.layer, &b->run.batch, b->micro[m].x, b->micro[m].y,
                                         &b->micro[m].pass));
}

static void backward(micro_batches *b, size_t m, bool first, bool last) {
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    losses.accumulate = !first;
    ASSERT_OK_ON_ALL(
        moert_pass_backward(b->micro[m].pass, b->micro[m].dy, &losses, b->micro[m].dx));
    if (b->run.deferred)
        ASSERT_OK_ON_ALL(moert_pass_wgrad(b->micro[m].pass));
    ASSERT_OK_ON_ALL(moert_layer_reduce(b->run.layer, last));
    moert_pass_destroy(b->micro[m].pass);
}

/* Runs `count` micro-batches, whose backwards come in this order; with `interleaved` all their
 * forwards come first. */
static void run_step(micro_batches *b, const size_t order[], size_t count, bool interleaved) {
    for (size_t m = 0; m < count && interleaved; m++)
        forward(b, m);
    for (size_t i = 0; i < count; i++) {
        if (!interleaved)
            forward(b, order[i]);
        backward(b, order[i], i == 0, i + 1 == count);
    }
}

static bool same_results(const micro_batches *a, const micro_batches *b, size_t count) {
    bool same = true;
    for (size_t m = 0; m < count; m++)
        same = same && same_floats(a->micro[m].y, b->micro[m].y, a->n) &&
               same_floats(a->micro[m].dx, b->micro[m].dx, a->n);
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_layer_tensor which = (moert_layer_tensor)i;
        const moert_buffer *gradient = moert_layer_gradient(a->run.layer, which);
        if (gradient != NULL)
            same = same && same_floats(gradient, moert_layer_gradient(b->run.layer, which),
                                       moert_buffer_bytes(gradient) / sizeof(float));
    }
    return same;
}

static void compare(moert_layer_options options, bool deferred) {
    static const struct {
        size_t count, order[MICRO];
    } rows[] = {{2, {0, 1}}, {4, {0, 1, 2, 3}}, {4, {2, 0, 3, 1}}};
    options.deferred_wgrad = deferred;
    micro_batches alone = open_micro_batches(options), together = open_micro_batches(options);
    for (size_t r = 0; r < MOERT_COUNT(rows); r++) {
        run_step(&alone, rows[r].order, rows[r].count, false);
        run_step(&together, rows[r].order, rows[r].count, true);
        ASSERT_ON_ALL(same_results(&alone, &together, rows[r].count));
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
    const moert_layer_options options = layer_form(20, 12);
    micro_batches never = open_micro_batches(options), often = open_micro_batches(options);
    for (size_t round = 0; round < 3; round++) {
        for (size_t m = 0; m < MICRO; m++)
            forward(&often, m);
        for (size_t m = 0; m < MICRO; m++)
            moert_pass_destroy(often.micro[m].pass);
    }
    ASSERT_ON_ALL(often.run.layer->passes->count == MICRO); /* later passes take their memory */
    run_step(&never, order, 2, true);
    run_step(&often, order, 2, true);
    ASSERT_ON_ALL(same_results(&never, &often, 2));
    ASSERT_ON_ALL(often.run.layer->passes->count == MICRO);
}

MPI_TESTS(open_test_context, close_test_context)

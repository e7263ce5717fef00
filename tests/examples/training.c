/*
 * A data-parallel training loop with one MoE layer: every rank has a part of the sequences, and the
 * ranks share the experts. All ranks print the same losses, on 1, 2, 3, 4, 6 or 12 ranks.
 *
 * The layer learns to map each token x to -x. Each step has two micro-batches, whose passes are in
 * flight at the same time. The update is plain gradient descent on the host.
 */
#include <moert/moert.h>
#include <stdio.h>
#include <stdlib.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != MOERT_OK) {                                                                  \
            fprintf(stderr, "%s\n", moert_last_error());                                           \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

enum { SEQUENCES = 12, LENGTH = 16, H = 32, STEPS = 50, MICRO = 2 }; /* per micro-batch */

/* A micro-batch of this rank: its sequences, and the buffers for its pass. */
typedef struct micro_batch {
    moert_batch batch;
    moert_buffer *x, *y, *ends;
    moert_pass *pass;
} micro_batch;

static size_t rank, ranks;

static float token(size_t index, size_t step, int h) {
    return (float)((index * 31 + step * 7 + (size_t)h * 13) % 61) / 61.0f - 0.5f;
}

static micro_batch make_batch(moert_device *device, size_t which) {
    micro_batch m = {.batch = MOERT_BATCH_INIT};
    const size_t count = SEQUENCES / ranks, first = rank * count, bytes = LENGTH * H * 4 * count;
    uint32_t ends[SEQUENCES];
    float *x;
    TRY(moert_buffer_create(device, bytes, &m.x));
    TRY(moert_buffer_create(device, bytes, &m.y));
    TRY(moert_buffer_create(device, sizeof ends, &m.ends));
    for (size_t s = 0; s < count; s++)
        ends[s] = (uint32_t)((s + 1) * LENGTH);
    TRY(moert_buffer_write(m.ends, 0, ends, count * sizeof *ends));
    TRY(moert_buffer_map(m.x, &x));
    for (size_t t = 0; t < count * LENGTH; t++)
        for (int h = 0; h < H; h++)
            x[t * H + (size_t)h] = token(first * LENGTH + t, which, h);
    TRY(moert_buffer_unmap(m.x, x));
    m.batch.tokens = count * LENGTH;
    m.batch.sequences = count;
    m.batch.first_sequence = first;
    m.batch.total_sequences = SEQUENCES;
    m.batch.ends = m.ends;
    return m;
}

/* The loss is the mean of (x + y)^2 / 2. Replaces y by the gradient of the loss; sums[s] = the sum
 * of (x + y)^2 / 2 over sequence s. */
static void differentiate(const micro_batch *m, double *sums) {
    const size_t row = LENGTH * H;
    float *x, *y;
    TRY(moert_buffer_map(m->x, &x));
    TRY(moert_buffer_map(m->y, &y));
    for (size_t s = 0; s < m->batch.sequences; s++) {
        sums[s] = 0.0;
        for (size_t i = s * row; i < (s + 1) * row; i++) {
            const double error = (double)x[i] + (double)y[i];
            sums[s] += error * error / 2.0;
            y[i] = (float)(error / (MICRO * SEQUENCES * LENGTH));
        }
    }
    TRY(moert_buffer_unmap(m->y, y));
    TRY(moert_buffer_unmap(m->x, x));
}

/* weight -= rate * gradient, for every tensor of the layer. */
static void descend(moert_layer *layer, float rate) {
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        moert_buffer *weight = moert_layer_weight(layer, (moert_layer_tensor)i);
        moert_buffer *gradient = moert_layer_gradient(layer, (moert_layer_tensor)i);
        float *w, *g;
        if (weight == NULL || gradient == NULL)
            continue;
        TRY(moert_buffer_map(weight, &w));
        TRY(moert_buffer_map(gradient, &g));
        for (size_t n = 0; n < moert_buffer_bytes(weight) / sizeof *w; n++)
            w[n] -= rate * g[n];
        TRY(moert_buffer_unmap(gradient, g));
        TRY(moert_buffer_unmap(weight, w));
    }
    moert_layer_weights_changed(layer);
}

/* Runs one step and returns the loss of the step. Adds the sequences' sums in order, so the digits
 * do not depend on the number of ranks. */
static double step(moert_layer *layer, micro_batch *micro, moert_buffer *dx) {
    double mine[SEQUENCES], all[SEQUENCES], loss = 0.0;
    const int count = (int)(SEQUENCES / ranks);
    for (int m = 0; m < MICRO; m++)
        TRY(moert_layer_forward(layer, &micro[m].batch, micro[m].x, micro[m].y, &micro[m].pass));
    for (int m = 0; m < MICRO; m++) {
        moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
        losses.accumulate = m > 0;
        differentiate(&micro[m], mine);
        TRY(moert_pass_backward(micro[m].pass, micro[m].y, &losses, dx));
        TRY(moert_layer_reduce(layer, m + 1 == MICRO));
        moert_pass_destroy(micro[m].pass);
        MPI_Allgather(mine, count, MPI_DOUBLE, all, count, MPI_DOUBLE, MPI_COMM_WORLD);
        for (int s = 0; s < SEQUENCES; s++)
            loss += all[s] / (MICRO * SEQUENCES * LENGTH);
    }
    descend(layer, 2.0f);
    return loss;
}

int main(int argc, char **argv) {
    moert_context *context;
    moert_mesh *mesh;
    moert_layer *layer;
    moert_buffer *dx;
    micro_batch micro[MICRO];
    double first = 0.0, loss = 0.0;
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT;
    options.hidden = H;
    options.intermediate = 48;
    options.router.experts = 12;
    options.router.topk = 2;
    MPI_Init(&argc, &argv);
    TRY(moert_context_create(MPI_COMM_WORLD, NULL, &context));
    TRY(moert_mesh_create(context, 0, &mesh));
    TRY(moert_layer_create(mesh, &options, &layer));
    TRY(moert_layer_initialize(layer, 1, 0.2));
    rank = moert_context_rank(context);
    ranks = moert_context_size(context);
    if (SEQUENCES % ranks != 0) {
        fprintf(stderr, "%d sequences for %zu ranks\n", SEQUENCES, ranks);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    moert_device *device = moert_context_device(context);
    for (size_t m = 0; m < MICRO; m++)
        micro[m] = make_batch(device, m);
    TRY(moert_buffer_create(device, moert_buffer_bytes(micro[0].x), &dx));
    for (int i = 0; i < STEPS; i++) {
        loss = step(layer, micro, dx);
        first = i == 0 ? loss : first;
    }
    if (!(loss < 0.5 * first)) {
        fprintf(stderr, "the loss has not halved: %g, then %g\n", first, loss);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    printf("rank %zu of %zu: losses = %.9g, %.9g\n", rank, ranks, first, loss);
    for (int m = 0; m < MICRO; m++) {
        moert_buffer_destroy(micro[m].ends);
        moert_buffer_destroy(micro[m].y);
        moert_buffer_destroy(micro[m].x);
    }
    moert_buffer_destroy(dx);
    moert_layer_destroy(layer);
    moert_mesh_destroy(mesh);
    moert_context_destroy(context);
    MPI_Finalize();
}

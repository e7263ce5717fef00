/*
 * Experts of your own between dispatch and combine: a SwiGLU expert from op objects and the GLU,
 * forward and backward. The results have the bits of moert's layer with the same weights and
 * routing.
 *
 * T tokens are divided among the ranks. Every rank prints the same checksum of y, dx and the
 * gradients of the routing weights, on any number of ranks and with any engine.
 */
#include <moert/moert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call)                                                                                  \
    do {                                                                                           \
        if ((call) != MOERT_OK) {                                                                  \
            fprintf(stderr, "%s\n", moert_last_error());                                           \
            MPI_Abort(MPI_COMM_WORLD, 1);                                                          \
        }                                                                                          \
    } while (0)

enum { T = 96, H = 48, I = 40, E = 6, K = 2 };
enum { Y, DX, DWEIGHT, RESULTS };

/* This rank's tokens and their routing. */
typedef struct tokens {
    size_t first, count;
    moert_buffer *x, *dy, *index, *weight;
} tokens;

static moert_device *device;

static moert_buffer *make(size_t floats) {
    moert_buffer *buffer;
    TRY(moert_buffer_create(device, floats * sizeof(float), &buffer));
    return buffer;
}

static moert_buffer *upload(const void *values, size_t count) {
    moert_buffer *buffer = make(count);
    TRY(moert_buffer_write(buffer, 0, values, count * sizeof(float)));
    return buffer;
}

/* Token t goes to experts t % E and (t + 1 + t / 7) % E. Every ninth token has no second expert. */
static tokens make_tokens(size_t rank, size_t ranks) {
    static float x[T * H], dy[T * H], weight[T * K];
    static int32_t index[T * K];
    tokens made = {.first = T * rank / ranks};
    made.count = T * (rank + 1) / ranks - made.first;
    for (size_t i = 0; i < made.count; i++) {
        const int t = (int)(made.first + i), other = (t + 1 + t / 7) % E;
        index[i * K] = t % E;
        index[i * K + 1] = t % 9 == 0 || other == t % E ? -1 : other;
        weight[i * K] = 0.75f - (float)(t % 5) * 0.125f;
        weight[i * K + 1] = 1.0f - weight[i * K];
        for (int h = 0; h < H; h++) {
            x[i * H + (size_t)h] = (float)((t * 29 + h * 13) % 101) / 101.0f - 0.5f;
            dy[i * H + (size_t)h] = (float)((t * 17 + h * 5) % 89) / 89.0f - 0.5f;
        }
    }
    made.x = upload(x, made.count * H);
    made.dy = upload(dy, made.count * H);
    made.index = upload(index, made.count * K);
    made.weight = upload(weight, made.count * K);
    return made;
}

/* ---- the layer ---- */

static moert_layer *make_layer(moert_mesh *mesh) {
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT;
    moert_layer *layer;
    options.hidden = H;
    options.intermediate = I;
    options.router.experts = E;
    options.router.topk = K;
    options.external_routing = true;
    TRY(moert_layer_create(mesh, &options, &layer));
    TRY(moert_layer_initialize(layer, 1, 0.1));
    return layer;
}

static void run_layer(moert_layer *layer, const tokens *t, size_t rank, size_t ranks,
                      moert_buffer *const result[RESULTS]) {
    const uint32_t end = (uint32_t)t->count; /* one sequence, if there are tokens */
    moert_buffer *ends = upload(&end, 1);
    moert_batch batch = MOERT_BATCH_INIT;
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    moert_pass *pass;
    batch.tokens = t->count;
    batch.sequences = 1;
    batch.first_sequence = rank;
    batch.total_sequences = ranks;
    batch.ends = ends;
    batch.index = t->index;
    batch.weight = t->weight;
    losses.weight_gradient = result[DWEIGHT];
    TRY(moert_layer_forward(layer, &batch, t->x, result[Y], &pass));
    TRY(moert_pass_backward(pass, t->dy, &losses, result[DX]));
    moert_pass_destroy(pass);
    moert_buffer_destroy(ends);
}

/* ---- the same computation with experts in this program ---- */

/* One grouped GEMM over the rows of this rank's experts. */
static void run_gemm(moert_op_kind kind, const moert_route *route, size_t n, size_t k,
                     moert_buffer *x, moert_buffer *weight, moert_buffer *y) {
    moert_op_options options = MOERT_OP_OPTIONS_INIT;
    moert_op_buffers buffers = MOERT_OP_BUFFERS_INIT;
    options.kind = kind;
    options.groups = moert_route_plan(route)->local_experts;
    options.rows = moert_route_rows(route);
    options.n = n;
    options.k = k;
    buffers.ends = moert_route_ends(route);
    buffers.x = x;
    buffers.weight = weight;
    buffers.y = y;
    TRY(moert_op_once(device, &options, &buffers));
}

static void run_experts(moert_mesh *mesh, moert_buffer *w1, moert_buffer *w2, const tokens *t,
                        moert_buffer *const result[RESULTS]) {
    moert_route *route;
    moert_route_options options = MOERT_ROUTE_OPTIONS_INIT;
    options.experts = E;
    options.topk = K;
    options.tokens = t->count;
    options.index = t->index; /* int32 [T,K], -1 = dropped */
    TRY(moert_route_create(mesh, &options, &route));
    const size_t m = moert_route_rows(route); /* number of rows that this rank's experts get */
    moert_buffer *rows = make(m * H), *prob = make(m), *dprob = make(m);
    moert_buffer *v = make(m * 2 * I), *h = make(m * I), *dh = make(m * I);

    /* forward: the GLU multiplies by the routing weights, so the combine gets no weights */
    moert_route_buffers go = MOERT_ROUTE_BUFFERS_INIT;
    go.columns = H;
    go.tokens = t->x;
    go.weight = t->weight;
    go.rows = rows;
    go.row_weight = prob;
    TRY(moert_route_dispatch(route, &go));
    /* the experts compute on rows[m,H], which are ordered by expert; each expert's rows end at
     * moert_route_ends(route) */
    moert_glu_rows glu = MOERT_GLU_ROWS_INIT;
    glu.rows = m;
    glu.width = I;
    glu.v = glu.dv = v;
    glu.prob = prob;
    glu.h = h;
    glu.dh = dh;
    glu.dprob = dprob;
    run_gemm(MOERT_OP_GEMM_FORWARD, route, 2 * I, H, rows, w1, v);
    TRY(moert_glu_apply(&glu));
    run_gemm(MOERT_OP_GEMM_FORWARD, route, H, I, h, w2, rows);
    go.tokens = result[Y];
    go.weight = go.row_weight = NULL;
    TRY(moert_route_combine(route, &go));

    /* backward */
    go.tokens = t->dy;
    TRY(moert_route_combine_backward(route, &go));
    run_gemm(MOERT_OP_GEMM_DGRAD, route, H, I, dh, w2, rows);
    TRY(moert_glu_differentiate(&glu));
    run_gemm(MOERT_OP_GEMM_DGRAD, route, 2 * I, H, rows, w1, v);
    go.tokens = result[DX];
    go.weight = result[DWEIGHT];
    go.row_weight = dprob;
    TRY(moert_route_dispatch_backward(route, &go));

    moert_buffer *const all[] = {rows, prob, dprob, v, h, dh};
    for (size_t i = 0; i < sizeof all / sizeof *all; i++)
        moert_buffer_destroy(all[i]);
    moert_route_destroy(route);
}

/* ---- comparison ---- */

/* Checks that both results have the same bits. Returns this rank's part of a checksum; the sum of
 * the parts does not depend on the distribution of tokens over the ranks. */
static uint64_t check(const tokens *t, size_t width, const moert_buffer *own,
                      const moert_buffer *layers) {
    static uint32_t a[T * H], b[T * H];
    const size_t n = t->count * width;
    uint64_t sum = 0;
    TRY(moert_buffer_read(own, 0, a, n * sizeof *a));
    TRY(moert_buffer_read(layers, 0, b, n * sizeof *b));
    if (memcmp(a, b, n * sizeof *a) != 0) {
        fprintf(stderr, "experts and layer have different bits in a result of width %zu: %x %x\n",
                width, (unsigned)a[0], (unsigned)b[0]);
        MPI_Abort(MPI_COMM_WORLD, 1);
    }
    for (size_t i = 0; i < n; i++)
        sum += (a[i] + 1) * (2 * (t->first * width + i) + 1) * 0x9E3779B97F4A7C15u;
    return sum;
}

int main(int argc, char **argv) {
    static const size_t widths[RESULTS] = {H, H, K};
    moert_context *context;
    moert_mesh *mesh;
    moert_buffer *own[RESULTS], *layers[RESULTS];
    uint64_t sum = 0, total = 0;
    MPI_Init(&argc, &argv);
    TRY(moert_context_create(MPI_COMM_WORLD, NULL, &context));
    TRY(moert_mesh_create(context, 0, &mesh));
    device = moert_context_device(context);
    const size_t rank = moert_context_rank(context), ranks = moert_context_size(context);
    const tokens t = make_tokens(rank, ranks);
    moert_layer *layer = make_layer(mesh);
    for (int i = 0; i < RESULTS; i++) {
        own[i] = make(t.count * widths[i]);
        layers[i] = make(t.count * widths[i]);
    }
    run_layer(layer, &t, rank, ranks, layers);
    run_experts(mesh, moert_layer_weight(layer, MOERT_LAYER_W1),
                moert_layer_weight(layer, MOERT_LAYER_W2), &t, own);
    for (int i = 0; i < RESULTS; i++)
        sum += check(&t, widths[i], own[i], layers[i]);
    MPI_Allreduce(&sum, &total, 1, MPI_UINT64_T, MPI_SUM, MPI_COMM_WORLD);
    printf("rank %zu of %zu, %s exchange: checksum = %016llx\n", rank, ranks,
           moert_mesh_engine(mesh), (unsigned long long)total);
    moert_buffer *const inputs[] = {t.x, t.dy, t.index, t.weight};
    for (int i = 0; i < RESULTS; i++) {
        moert_buffer_destroy(own[i]);
        moert_buffer_destroy(layers[i]);
    }
    for (int i = 0; i < 4; i++)
        moert_buffer_destroy(inputs[i]);
    moert_layer_destroy(layer);
    moert_mesh_destroy(mesh);
    moert_context_destroy(context);
    MPI_Finalize();
}

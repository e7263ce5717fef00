/*
 * A whole expert-parallel training in one file: a model that predicts the next byte of a text.
 *
 *   x[T,H] = sum over the last CONTEXT bytes of their embeddings
 *   x = x + layer(x)              two MoE layers, whose experts are divided over the ranks
 *   loss = cross-entropy of softmax(x head^T) and the next byte, the mean over T tokens
 *
 * moert computes the layers; embedding, head, loss and update are plain C. The ranks divide the
 * sequences of a batch, evenly or not. The digits do not depend on the number of ranks: moert's
 * layers promise this, each row depends on one token only, and each rank adds up all rows of the
 * batch in token order.
 *   mpirun -n 2 --bind-to none ./tiny_train [FILE]
 */
#include <math.h>
#include <moert/moert.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TRY(call) ((call) == MOERT_OK ? (void)0 : fail(moert_last_error()))

/* V: the text is ASCII, so only the low 7 bits of a byte count. SEQUENCES and T are the numbers of
 * sequences and tokens of all ranks. */
enum { V = 128, H = 64, CONTEXT = 8, LAYERS = 2, STEPS = 100 };
enum { SEQUENCES = 10, LENGTH = 64, T = SEQUENCES * LENGTH };

typedef struct moe_layer {
    moert_layer *layer;
    moert_pass *pass;
    moert_buffer *x, *y; /* [T of this rank, H]; later y holds dy, then dx */
} moe_layer;

/* A tensor for the optimizer: either host arrays, or buffers that the update maps to host
 * memory. */
typedef struct tensor {
    float *w, *g;
    moert_buffer *weight, *gradient;
    /* n: number of elements; place: number of elements on lower ranks, 0 if all ranks have the
     * tensor */
    size_t n, place;
    float (*moments)[2]; /* Adam's */
} tensor;

static float embedding[CONTEXT][V][H], embedding_gradient[CONTEXT][V][H];
static float head[V][H], head_gradient[V][H];
static moe_layer layers[LAYERS];
static tensor tensors[2 + LAYERS * MOERT_LAYER_TENSORS];
static size_t tensor_count;

/* The batch. A rank computes rows [first, end) of these arrays. */
static size_t position[T]; /* in the text */
static float x[T][H], dx[T][H], dlogits[T][V], losses[T];
static size_t first, end;
static int rank, ranks;
static unsigned char text[1 << 20];
static unsigned long length;

static void fail(const char *message) {
    fprintf(stderr, "tiny_train: %s\n", message);
    MPI_Abort(MPI_COMM_WORLD, 1);
}

/* Rank 0 reads the text for all ranks. */
static void read_text(const char *path) {
    FILE *file = rank == 0 ? fopen(path, "rb") : NULL;
    if (file != NULL) {
        length = fread(text, 1, sizeof text, file);
        fclose(file);
    }
    MPI_Bcast(&length, 1, MPI_UNSIGNED_LONG, 0, MPI_COMM_WORLD);
    if (length <= CONTEXT + LENGTH)
        fail("the text cannot be read, or is too short");
    MPI_Bcast(text, (int)length, MPI_UNSIGNED_CHAR, 0, MPI_COMM_WORLD);
    for (size_t i = 0; i < length; i++)
        text[i] %= V;
}

/* SplitMix64: a random number that depends on n alone. */
static uint64_t random_number(uint64_t n) {
    n = (n + 1) * 0x9E3779B97F4A7C15u;
    n = (n ^ n >> 30) * 0xBF58476D1CE4E5B9u;
    n = (n ^ n >> 27) * 0x94D049BB133111EBu;
    return n ^ n >> 31;
}

/* Returns the first sequence of rank r. */
static size_t start(int r) {
    return (size_t)(SEQUENCES * r / ranks);
}

/* All ranks choose the same sequences; each rank computes its part of the sequences. */
static void choose_batch(int step) {
    for (size_t t = 0; t < T; t++) {
        const uint64_t n = random_number((uint64_t)step * SEQUENCES + t / LENGTH);
        position[t] = CONTEXT - 1 + n % (length - CONTEXT - LENGTH + 1) + t % LENGTH;
    }
}

static void add_tensor(tensor t) {
    t.moments = calloc(t.n, sizeof *t.moments);
    if (t.moments == NULL)
        fail("out of memory");
    tensors[tensor_count++] = t;
}

/* Adds a dense tensor with values uniform in [-bound, bound). */
static void add_dense(float *w, float *g, size_t n, float bound) {
    for (size_t i = 0; i < n; i++)
        w[i] = bound * ((float)(random_number(n + i) >> 40) / 8388608.0f - 1.0f);
    add_tensor((tensor){.w = w, .g = g, .n = n});
}

static void add_layer(moe_layer *l, moert_device *device, moert_mesh *mesh) {
    moert_layer_options options = MOERT_LAYER_OPTIONS_INIT; /* SwiGLU, softmax routing */
    options.hidden = H;
    options.intermediate = 64;
    options.router.experts = 8;
    options.router.topk = 2;
    TRY(moert_layer_create(mesh, &options, &l->layer));
    TRY(moert_layer_initialize(l->layer, (uint64_t)(l - layers), 0.1));
    TRY(moert_buffer_create(device, (end - first) * sizeof *x, &l->x));
    TRY(moert_buffer_create(device, (end - first) * sizeof *x, &l->y));
    for (moert_layer_tensor i = 0; i < MOERT_LAYER_TENSORS; i++) {
        tensor t = {.weight = moert_layer_weight(l->layer, i),
                    .gradient = moert_layer_gradient(l->layer, i)};
        if (t.weight == NULL || t.gradient == NULL)
            continue;
        t.n = moert_buffer_bytes(t.weight) / sizeof(float);
        if (i == MOERT_LAYER_W1 || i == MOERT_LAYER_W2)
            t.place =
                t.n / moert_layer_local_experts(l->layer) * moert_layer_first_expert(l->layer);
        add_tensor(t);
    }
}

/* Adds the values of a buffer to rows [first, end). */
static void add_buffer(float (*rows)[H], moert_buffer *buffer) {
    float *own = rows[first], *values;
    TRY(moert_buffer_map(buffer, &values));
    for (size_t i = 0; i < (end - first) * H; i++)
        own[i] += values[i];
    TRY(moert_buffer_unmap(buffer, values));
}

static void forward(const moert_batch *batch) {
    memset(x, 0, sizeof x);
    for (size_t t = first; t < end; t++)
        for (size_t c = 0; c < CONTEXT; c++)
            for (size_t h = 0; h < H; h++)
                x[t][h] += embedding[c][text[position[t] - c]][h];
    for (moe_layer *l = layers; l < layers + LAYERS; l++) {
        TRY(moert_buffer_write(l->x, 0, x + first, (end - first) * sizeof *x));
        TRY(moert_layer_forward(l->layer, batch, l->x, l->y, &l->pass));
        add_buffer(x, l->y);
    }
}

/* Computes the losses of this rank's tokens, and the gradients of the tokens' logits and of x. */
static void differentiate_loss(void) {
    memset(dx, 0, sizeof dx);
    for (size_t t = first; t < end; t++) {
        const size_t target = text[position[t] + 1];
        float *p = dlogits[t], largest = -INFINITY, sum = 0.0f;
        for (size_t v = 0; v < V; v++) {
            p[v] = 0.0f;
            for (size_t h = 0; h < H; h++)
                p[v] += x[t][h] * head[v][h];
            largest = fmaxf(largest, p[v]);
        }
        losses[t] = largest - p[target];
        for (size_t v = 0; v < V; v++)
            sum += p[v] = expf(p[v] - largest);
        losses[t] += logf(sum);
        for (size_t v = 0; v < V; v++) {
            p[v] = (p[v] / sum - (v == target ? 1.0f : 0.0f)) / T;
            for (size_t h = 0; h < H; h++)
                dx[t][h] += p[v] * head[v][h];
        }
    }
}

/* Runs the backward of all layers. dx becomes the gradient of the sum of embeddings; each layer
 * keeps the gradients of its weights. */
static void backward(void) {
    for (moe_layer *l = layers + LAYERS; l-- > layers;) {
        TRY(moert_buffer_write(l->y, 0, dx + first, (end - first) * sizeof *dx));
        TRY(moert_pass_backward(l->pass, l->y, NULL, l->y));
        moert_pass_destroy(l->pass);
        TRY(moert_layer_reduce(l->layer, true)); /* gradients over all ranks */
        add_buffer(dx, l->y);
    }
}

/* Gathers each rank's part of rows[T,width] on all ranks. */
static void share(float *rows, size_t width) {
    for (int r = 0; r < ranks; r++)
        MPI_Bcast(rows + start(r) * LENGTH * width,
                  (int)((start(r + 1) - start(r)) * LENGTH * width), MPI_FLOAT, r, MPI_COMM_WORLD);
}

/* Sums losses and gradients over all tokens; every rank adds the same rows in the same order.
 * Returns the loss. */
static double sum_over_tokens(void) {
    double loss = 0.0;
    share(losses, 1);
    share(*x, H);
    share(*dx, H);
    share(*dlogits, V);
    for (size_t t = 0; t < T; t++) {
        loss += (double)losses[t] / T;
        for (size_t v = 0; v < V; v++)
            for (size_t h = 0; h < H; h++)
                head_gradient[v][h] += dlogits[t][v] * x[t][h];
        for (size_t c = 0; c < CONTEXT; c++)
            for (size_t h = 0; h < H; h++)
                embedding_gradient[c][text[position[t] - c]][h] += dx[t][h];
    }
    return loss;
}

/* Adam. Returns a checksum of the new weights: the sum over all weights of the weight's bits, times
 * a number that depends on the weight's index. A sum of integers does not depend on its order. */
static unsigned long update_tensor(tensor *t, int step) {
    const float rate = 3e-3f, beta1 = 0.9f, beta2 = 0.98f;
    const float unbias1 = 1 - powf(beta1, (float)step), unbias2 = 1 - powf(beta2, (float)step);
    unsigned long sum = 0;
    if (t->weight != NULL) {
        TRY(moert_buffer_map(t->weight, &t->w));
        TRY(moert_buffer_map(t->gradient, &t->g));
    }
    for (size_t i = 0; i < t->n; i++) {
        float *m = t->moments[i], *v = m + 1;
        uint32_t bits;
        *m += (1 - beta1) * (t->g[i] - *m);
        *v += (1 - beta2) * (t->g[i] * t->g[i] - *v);
        t->w[i] -= rate * (*m / unbias1) / (sqrtf(*v / unbias2) + 1e-8f);
        memcpy(&bits, &t->w[i], sizeof bits);
        t->g[i] = 0; /* gradients of dense tensors accumulate, so clear them for the next step */
        sum += bits * random_number((uint64_t)(t - tensors) << 32 | (t->place + i));
    }
    if (t->weight != NULL) {
        TRY(moert_buffer_unmap(t->gradient, t->g));
        TRY(moert_buffer_unmap(t->weight, t->w));
    }
    return t->place == 0 && rank != 0 ? 0 : sum;
}

static unsigned long update(int step) {
    unsigned long sum = 0;
    for (size_t i = 0; i < tensor_count; i++)
        sum += update_tensor(&tensors[i], step);
    for (size_t l = 0; l < LAYERS; l++)
        moert_layer_weights_changed(layers[l].layer);
    MPI_Allreduce(MPI_IN_PLACE, &sum, 1, MPI_UNSIGNED_LONG, MPI_SUM, MPI_COMM_WORLD);
    return sum;
}

int main(int argc, char **argv) {
    moert_context *context;
    moert_mesh *mesh;
    moert_buffer *ends;
    uint32_t sequence_ends[SEQUENCES];
    MPI_Init(&argc, &argv);
    TRY(moert_context_create(MPI_COMM_WORLD, NULL, &context)); /* cores, device, watchdog */
    TRY(moert_mesh_create(context, 0, &mesh));                 /* all ranks share the experts */
    moert_device *device = moert_context_device(context);
    rank = (int)moert_context_rank(context);
    ranks = (int)moert_context_size(context);
    first = start(rank) * LENGTH;
    end = start(rank + 1) * LENGTH;
    read_text(argc > 1 ? argv[1] : "tiny_train.c");
    add_dense(**embedding, **embedding_gradient, CONTEXT * V * H, 0.5f);
    add_dense(*head, *head_gradient, V * H, 0.1f);
    for (size_t l = 0; l < LAYERS; l++)
        add_layer(&layers[l], device, mesh);
    for (size_t s = 0; s < SEQUENCES; s++)
        sequence_ends[s] = (uint32_t)((s + 1) * LENGTH);
    TRY(moert_buffer_create(device, sizeof sequence_ends, &ends));
    TRY(moert_buffer_write(ends, 0, sequence_ends, sizeof sequence_ends));
    const moert_batch batch = {.size = sizeof batch,
                               .tokens = end - first,
                               .sequences = start(rank + 1) - start(rank),
                               .first_sequence = start(rank),
                               .total_sequences = SEQUENCES,
                               .ends = ends};

    for (int step = 1; step <= STEPS; step++) {
        choose_batch(step);
        forward(&batch);
        differentiate_loss();
        backward();
        const double loss = sum_over_tokens();
        const unsigned long weights = update(step);
        if (rank == 0 && (step == 1 || step % 10 == 0))
            printf("step %3d  loss %.9f  weights %016lx\n", step, loss, weights);
    }

    for (moe_layer *l = layers; l < layers + LAYERS; l++) {
        moert_buffer_destroy(l->y);
        moert_buffer_destroy(l->x);
        moert_layer_destroy(l->layer);
    }
    moert_buffer_destroy(ends);
    moert_mesh_destroy(mesh);
    moert_context_destroy(context);
    MPI_Finalize();
}

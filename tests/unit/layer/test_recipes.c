// run: check=1,2 all=3,2san
/* Layers of every recipe, with a shared expert, against an emulation in float64, which rounds the
 * operands of each GEMM in plain arithmetic. The two differ only where sums that differ in the last
 * bits are rounded to different values, which is rare: far less than the rounding itself. */
#include "base/rng.h"
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"
#include "support/quant/quantize_oracle.h"
#include "support/quant/rounding_oracle.h"

enum { TOKENS = 50 * LAYER_TOKENS, EXPERTS = 5, STREAMS = 4, SHARED_WIDTH = 72 };

/* The rows and results of one expert, or of the shared expert. A block of rows does not cross the
 * end of a group of rows. */
typedef struct expert {
    const moert_recipe *recipe;
    size_t groups;
    uint32_t ends[LAYER_PIECES], draws[LAYER_PIECES][2];
    uint64_t seed[2];     /* of the two projections */
    uint32_t next_stream; /* how many streams the second projection's streams come later */
    size_t rows, hidden, width;
    double *x, *dy;             /* [rows,H] */
    const double *w1, *w2;      /* [2I,H], [H,I] */
    double *y, *dx, *dw1, *dw2; /* [rows,H], [rows,H], [2I,H], [H,I] */
} expert;

static double *zeros(size_t n) {
    double *values = test_alloc((n + 1) * sizeof *values);
    memset(values, 0, n * sizeof *values);
    return values;
}

static double *rounded_by(const rounding_oracle *how, const double *x, bool down) {
    const size_t n = how->rows * how->columns;
    double *to = zeros(n);
    if (how->rounding != MOERT_ROUND_BF16)
        oracle_round(how, x, down, to);
    for (size_t i = 0; i < n && how->rounding == MOERT_ROUND_BF16; i++)
        to[i] = (double)round_to(MOERT_DTYPE_BF16, x[i]);
    return to;
}

/* x[rows,columns] of expert e, rounded. `second`: an operand of the second projection. */
static double *rounded(const expert *e, uint32_t rounding, const double *x, size_t columns,
                       bool second, bool down) {
    const rounding_oracle how = {.rounding = rounding,
                                 .seed = e->seed[second],
                                 .stream = second ? e->next_stream : 0,
                                 .draws = e->draws,
                                 .ends = e->ends,
                                 .groups = e->groups,
                                 .rows = e->rows,
                                 .columns = columns,
                                 .stride = columns};
    return rounded_by(&how, x, down);
}

static double *rounded_weight(const expert *e, const double *w, size_t n, size_t k, bool down) {
    const uint32_t ends[] = {(uint32_t)n};
    const rounding_oracle how = {.rounding = e->recipe->weight,
                                 .ends = ends,
                                 .groups = 1,
                                 .rows = n,
                                 .columns = k,
                                 .stride = k};
    return rounded_by(&how, w, down);
}

/* c[m,n] = sum_k a[m,k] b[n,k], with strides of a and b between lines and between terms. */
static void multiply(size_t m, size_t n, size_t k, const double *a, const size_t by_a[2],
                     const double *b, const size_t by_b[2], double *c) {
    for (size_t i = 0; i < m; i++)
        for (size_t j = 0; j < n; j++) {
            double sum = 0.0;
            for (size_t t = 0; t < k; t++)
                sum += a[i * by_a[0] + t * by_a[1]] * b[j * by_b[0] + t * by_b[1]];
            c[i * n + j] = sum;
        }
}

/* y[rows,n] = x[rows,k] w[n,k]^T, both rounded. */
static double *forward(const expert *e, const double *x, const double *w, size_t n, size_t k,
                       bool second) {
    double *y = zeros(e->rows * n);
    multiply(e->rows, n, k, rounded(e, e->recipe->x, x, k, second, false), (size_t[]){k, 1},
             rounded_weight(e, w, n, k, false), (size_t[]){k, 1}, y);
    return y;
}

/* dx[rows,k] = dy[rows,n] w[n,k], and dw[n,k] = dy^T x, all rounded. */
static double *backward(const expert *e, const double *x, const double *dy, const double *w,
                        size_t n, size_t k, bool second, double *dw) {
    const moert_recipe *r = e->recipe;
    double *dx = zeros(e->rows * k);
    multiply(e->rows, k, n, rounded(e, r->dy, dy, n, second, false), (size_t[]){n, 1},
             rounded_weight(e, w, n, k, true), (size_t[]){1, k}, dx);
    multiply(n, k, e->rows, rounded(e, r->wgrad_dy, dy, n, second, true), (size_t[]){1, n},
             rounded(e, r->wgrad_x, x, k, second, true), (size_t[]){1, k}, dw);
    return dx;
}

/* The expert's results: y = W2 bf16(silu(gate) up), and all gradients. */
static void compute_expert(const expert *e) {
    const size_t width = e->width, n = e->rows * width;
    const double *v = forward(e, e->x, e->w1, 2 * width, e->hidden, false);
    double *h = zeros(n), *dv = zeros(2 * n);
    for (size_t i = 0; i < n; i++) {
        const double *gate = v + i / width * 2 * width + i % width;
        h[i] = (double)round_to(MOERT_DTYPE_BF16, gate[width] * *gate / (1.0 + exp(-*gate)));
    }
    memcpy(e->y, forward(e, h, e->w2, e->hidden, width, true), e->rows * e->hidden * sizeof *e->y);
    const double *dh = backward(e, h, e->dy, e->w2, e->hidden, width, true, e->dw2);
    for (size_t i = 0; i < n; i++) {
        const size_t at = i / width * 2 * width + i % width;
        const double gate = v[at], s = 1.0 / (1.0 + exp(-gate));
        dv[at] = dh[i] * v[at + width] * s * (1.0 + gate * (1.0 - s));
        dv[at + width] = dh[i] * gate * s;
    }
    memcpy(e->dx, backward(e, e->x, dv, e->w1, 2 * width, e->hidden, false, e->dw1),
           e->rows * e->hidden * sizeof *e->dx);
}

/* Copies the rows of the tokens of expert e between [T,H] and [rows,H]. Returns their number. */
static size_t move_rows(const oracle_layer *oracle, size_t e, const double *all, double *own,
                        float *back) {
    const size_t hidden = oracle->options.hidden;
    size_t rows = 0;
    for (size_t t = 0; t < oracle->tokens; t++)
        if ((size_t)oracle->index[t] == e) {
            for (size_t i = 0; i < hidden && all != NULL; i++)
                own[rows * hidden + i] = all[t * hidden + i];
            for (size_t i = 0; i < hidden && back != NULL; i++)
                back[t * hidden + i] = (float)own[rows * hidden + i];
            rows++;
        }
    return rows;
}

static void put(const double *values, size_t n, float *to) {
    for (size_t i = 0; i < n; i++)
        to[i] = (float)values[i];
}

/* An expert with room for all rows; w1 and w2 are its weights. */
static expert open_expert(const oracle_layer *oracle, const moert_recipe *recipe, size_t width,
                          const double *w1, const double *w2) {
    const size_t h = oracle->options.hidden, n = TOKENS * h;
    return (expert){.recipe = recipe,
                    .hidden = h,
                    .width = width,
                    .x = zeros(n),
                    .dy = zeros(n),
                    .y = zeros(n),
                    .dx = zeros(n),
                    .w1 = w1,
                    .w2 = w2,
                    .dw1 = zeros(2 * width * h),
                    .dw2 = zeros(width * h)};
}

static void emulate_expert(const oracle_layer *oracle, const moert_recipe *recipe, size_t index,
                           layer_results *results) {
    const size_t h = oracle->options.hidden, width = oracle->options.intermediate,
                 one = 2 * width * h, two = h * width;
    expert e = open_expert(oracle, recipe, width, oracle->tensor[MOERT_LAYER_W1] + index * one,
                           oracle->tensor[MOERT_LAYER_W2] + index * two);
    e.rows = move_rows(oracle, index, oracle->x, e.x, NULL);
    move_rows(oracle, index, oracle->dy, e.dy, NULL);
    e.groups = 1;
    e.ends[0] = (uint32_t)e.rows;
    e.draws[0][0] = (uint32_t)index * STREAMS;
    e.next_stream = STREAMS / 2;
    compute_expert(&e);
    move_rows(oracle, index, NULL, e.y, results->value[LAYER_Y]);
    move_rows(oracle, index, NULL, e.dx, results->value[LAYER_DX]);
    put(e.dw1, one, results->value[MOERT_LAYER_W1] + index * one);
    put(e.dw2, two, results->value[MOERT_LAYER_W2] + index * two);
}

/* Adds the shared expert, whose groups of rows are the sequences. */
static void add_shared(const oracle_layer *oracle, const moert_recipe *recipe,
                       layer_results *results) {
    const size_t n = TOKENS * oracle->options.hidden, width = SHARED_WIDTH;
    expert e = open_expert(oracle, recipe, width, oracle->tensor[MOERT_LAYER_SHARED_W1],
                           oracle->tensor[MOERT_LAYER_SHARED_W2]);
    e.rows = TOKENS;
    memcpy(e.x, oracle->x, n * sizeof *e.x);
    memcpy(e.dy, oracle->dy, n * sizeof *e.dy);
    e.groups = LAYER_PIECES;
    for (size_t s = 0; s < LAYER_PIECES; s++) {
        e.ends[s] = (uint32_t)layer_tokens_before(oracle, s + 1);
        e.draws[s][0] = 2 * (uint32_t)s;
        e.draws[s][1] = 0u - (uint32_t)layer_tokens_before(oracle, s);
    }
    for (size_t i = 0; i < 2; i++)
        e.seed[i] = moert_rng_key(0, moert_rng_stream("shared expert"), i);
    compute_expert(&e);
    for (size_t i = 0; i < n; i++) {
        results->value[LAYER_Y][i] += (float)e.y[i];
        results->value[LAYER_DX][i] += (float)e.dx[i];
    }
    put(e.dw1, results->count[MOERT_LAYER_SHARED_W1], results->value[MOERT_LAYER_SHARED_W1]);
    put(e.dw2, results->count[MOERT_LAYER_SHARED_W2], results->value[MOERT_LAYER_SHARED_W2]);
}

static layer_results emulate(const oracle_layer *oracle, const moert_recipe *recipe) {
    layer_results results = layer_results_of(oracle);
    for (size_t index = 0; index < EXPERTS; index++)
        emulate_expert(oracle, recipe, index, &results);
    add_shared(oracle, recipe, &results);
    return results;
}

/* Signal-to-noise ratios in dB of a layer's results beside the emulation's. On tensor cores v, dh
 * and dv are bf16, which moves more values across the borders of rounding. */
static void check_recipe(oracle_layer *oracle, moert_precision precision) {
    static const int which[] = {LAYER_Y,
                                LAYER_DX,
                                MOERT_LAYER_W1,
                                MOERT_LAYER_W2,
                                MOERT_LAYER_SHARED_W1,
                                MOERT_LAYER_SHARED_W2};
    oracle->options.precision = precision;
    oracle->options.dense = precision == MOERT_PRECISION_BF16 ? precision : MOERT_PRECISION_F32;
    const layer_run run = layer_run_open(oracle, (layer_setup){0});
    const double limit = run.layer->choices.v == MOERT_DTYPE_F32 ? 60.0 : 25.0;
    const layer_results got = layer_compute(oracle, (layer_setup){0}, 1),
                        want = emulate(oracle, &run.layer->choices.recipe);
    for (size_t i = 0; i < MOERT_COUNT(which); i++) {
        const int r = which[i];
        const double ratio =
            -20.0 * log10(relative_difference(want.value[r], got.value[r], want.count[r]));
        if (test_rank == 0)
            print_message("# precision %d, result %d: %.1f dB\n", (int)precision, r, ratio);
        ASSERT_ON_ALL(ratio >= limit);
    }
}

/* Each token goes to one expert with weight 1, so that the router has no gradient. */
TEST(test_layers_have_the_results_of_the_emulated_recipes) {
    moert_layer_options options = layer_form(160, 48);
    options.router.topk = 1;
    options.router.renormalise = true;
    options.shared_intermediate = SHARED_WIDTH;
    oracle_layer oracle = oracle_layer_create(&options, TOKENS);
    oracle.z_factor = 0.0;
    memset(oracle.aux, 0, EXPERTS * sizeof *oracle.aux);
    for (int p = MOERT_PRECISION_BF16; p < MOERT_PRECISION_RECIPE; p++)
        check_recipe(&oracle, (moert_precision)p);
}

MPI_TESTS(open_test_context, close_test_context)

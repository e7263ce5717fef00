// run: check=1 all=1gpu,1san
/* RMSNorm against a float64 forward, its derivative and its central differences. */
#include "nn/nn.h"
#include "support/test.h"

static const float epsilon = 1e-5f;

typedef struct norm_case {
    size_t sequences, rows, width;
} norm_case;

static const norm_case cases[] = {{0, 0, 20},    {2, 0, 16},    {1, 4, 2},     {1, 1, 20},
                                  {3, 51, 20},   {2, 6, 64},    {5, 5, 17},    {2, 34, 100},
                                  {1, 70, 256},  {3, 3, 33},    {2, 300, 20},  {1, 70, 2048},
                                  {1, 70, 2100}, {1, 70, 4200}, {1, 70, 16388}};
#define CASES MOERT_COUNT(cases)
enum {
    WIDE = 256
}; /* checks skip wider rows if no other check uses the kernels compiled for them */

/* The oracle over all rows. The loss is sum(dy * y), so the gradients of the loss are the results
 * of backward. */
typedef struct oracle {
    norm_case shape;
    double *x, *weight, *dy, *y, *rstd;
    double *dx, *partial; /* [rows,width], [sequences,width] */
} oracle;

static double forward(void *context) {
    oracle *o = context;
    double loss = 0;
    const size_t width = o->shape.width;
    for (size_t r = 0; r < o->shape.rows; r++) {
        double squares = 0;
        for (size_t c = 0; c < width; c++)
            squares += o->x[r * width + c] * o->x[r * width + c];
        o->rstd[r] = 1 / sqrt(squares / (double)width + (double)epsilon);
        for (size_t c = 0; c < width; c++) {
            o->y[r * width + c] = o->x[r * width + c] * o->rstd[r] * o->weight[c];
            loss += o->y[r * width + c] * o->dy[r * width + c];
        }
    }
    return loss;
}

static oracle oracle_create(norm_case shape) {
    const size_t width = shape.width, n = shape.rows * width;
    oracle o = {.shape = shape,
                .x = random_doubles("x", n),
                .weight = random_doubles("weight", width),
                .dy = random_doubles("dy", n),
                .y = test_alloc(n * sizeof(double)),
                .rstd = test_alloc(shape.rows * sizeof(double)),
                .dx = test_alloc(n * sizeof(double)),
                .partial = test_alloc(shape.sequences * width * sizeof(double))};
    forward(&o);
    for (size_t r = 0; r < shape.rows; r++) {
        const double *x = o.x + r * width, *dy = o.dy + r * width, rstd = o.rstd[r];
        double sum = 0, *partial = o.partial + r * shape.sequences / shape.rows * width;
        for (size_t c = 0; c < width; c++)
            sum += dy[c] * o.weight[c] * x[c];
        for (size_t c = 0; c < width; c++) {
            o.dx[r * width + c] =
                rstd * dy[c] * o.weight[c] - x[c] * rstd * rstd * rstd / (double)width * sum;
            partial[c] += dy[c] * x[c] * rstd;
        }
    }
    return o;
}

/* Forward and backward on a range of rows of the oracle's inputs. */
typedef struct problem {
    moert_norm forward;
    moert_norm_gradient backward;
    moert_buffer *scratch;
} problem;

static void upload_problem(const oracle *o, size_t first, size_t rows, size_t sequences,
                           problem *p) {
    const size_t width = o->shape.width, n = rows * width;
    p->scratch = NULL;
    p->forward = (moert_norm){.rows = rows,
                              .width = width,
                              .epsilon = epsilon,
                              .x = upload_doubles(o->x + first * width, n),
                              .weight = upload_doubles(o->weight, width),
                              .y = unset_floats(n),
                              .rstd = unset_floats(rows)};
    p->backward = (moert_norm_gradient){.sequences = sequences,
                                        .rows = rows,
                                        .width = width,
                                        .x = p->forward.x,
                                        .weight = p->forward.weight,
                                        .rstd = p->forward.rstd,
                                        .dy = upload_doubles(o->dy + first * width, n),
                                        .dx = unset_floats(n),
                                        .partial = unset_floats(sequences * width),
                                        .scratch = &p->scratch};
}

TEST(test_norm_forward_agrees_with_float64_also_in_place_and_in_bf16) {
    for (size_t i = 0; i < CASES && cases[i].width <= WIDE; i++) {
        const size_t n = cases[i].rows * cases[i].width;
        oracle o = oracle_create(cases[i]);
        problem p;
        upload_problem(&o, 0, cases[i].rows, cases[i].sequences, &p);
        p.forward.bf16 = unset_bf16(n);
        ASSERT_OK(moert_norm_run(&p.forward));
        const float *y = download_floats(p.forward.y, n);
        assert_near("y", y, o.y, n, 2e-6);
        assert_near_in("rstd", p.forward.rstd, o.rstd, cases[i].rows, 2e-6);
        assert_bf16("bf16 with y", p.forward.bf16, y, n);
        p.forward.y = NULL;
        p.forward.bf16 = unset_bf16(n);
        ASSERT_OK(moert_norm_run(&p.forward));
        assert_bf16("bf16 without y", p.forward.bf16, y, n);
        p.forward.bf16 = NULL;
        p.forward.y = (moert_buffer *)p.forward.x;
        ASSERT_OK(moert_norm_run(&p.forward));
        assert_same_bits_in("y in place", p.forward.y, y, n);
    }
}

typedef struct gradients {
    float *dx, *partial;
} gradients;

static gradients device_backward(const oracle *o, size_t first, size_t rows, size_t sequences,
                                 bool in_place, const double *accumulated) {
    const size_t width = o->shape.width, n = rows * width;
    problem p;
    upload_problem(o, first, rows, sequences, &p);
    p.backward.accumulate = accumulated != NULL;
    if (in_place)
        p.backward.dx = p.backward.dy;
    else if (accumulated != NULL)
        p.backward.dx = upload_doubles(accumulated, n);
    ASSERT_OK(moert_norm_run(&p.forward));
    ASSERT_OK(moert_norm_backward(&p.backward));
    return (gradients){download_floats(p.backward.dx, n),
                       download_floats(p.backward.partial, sequences * width)};
}

TEST(test_norm_backward_agrees_with_float64_and_central_differences) {
    for (size_t i = 0; i < CASES; i++) {
        const norm_case s = cases[i];
        const size_t n = s.rows * s.width, partials = s.sequences * s.width;
        oracle o = oracle_create(s);
        const gradients got = device_backward(&o, 0, s.rows, s.sequences, i % 2 != 0, NULL);
        assert_near("dx", got.dx, o.dx, n, 1e-5);
        assert_near("partial", got.partial, o.partial, partials, 1e-5);
        double *sum = random_doubles("before", n);
        const gradients added = device_backward(&o, 0, s.rows, s.sequences, false, sum);
        for (size_t k = 0; k < n; k++)
            sum[k] += (double)got.dx[k];
        assert_near("accumulated dx", added.dx, sum, n, 1e-6);
        assert_same_bits("partial with accumulated dx", added.partial, got.partial, partials);
        if (s.width <= WIDE) {
            assert_gradient("dx", got.dx, (differentiated){o.x, n, 7, forward, &o});
            if (s.sequences == 1)
                assert_gradient("partial", got.partial,
                                (differentiated){o.weight, s.width, 3, forward, &o});
        }
    }
}

TEST(test_norm_of_a_sequence_has_the_same_bits_alone_and_in_a_batch) {
    /* the last batch has more pieces than MOST_PIECES of norm.c */
    static const struct {
        size_t rows, width;
    } sequence[] = {{137, 20}, {137, 64}, {137, 100}, {22000, 20}};
    for (size_t i = 0; i < MOERT_COUNT(sequence); i++) {
        const size_t rows = sequence[i].rows, width = sequence[i].width;
        oracle o = oracle_create((norm_case){3, 3 * rows, width});
        gradients batch = device_backward(&o, 0, 3 * rows, 3, false, NULL);
        gradients alone = device_backward(&o, rows, rows, 1, false, NULL);
        assert_same_bits("dx", alone.dx, batch.dx + rows * width, rows * width);
        assert_same_bits("partial", alone.partial, batch.partial + width, width);
    }
}

/* Sizes of the test of norm and rotation: heads per token, tokens per sequence, sequences. */
enum { HEADS = 3, LENGTH = 7, SEQUENCES = 2, ROWS = SEQUENCES * LENGTH * HEADS };

/* Compares norm and rotation of heads in two calls with one call that does both (in one kernel if
 * possible) and with its result in bf16. Then compares the gradients, which the combined call
 * writes in bf16. */
static void compare_rotated(size_t width, moert_rotation rotation) {
    const size_t n = ROWS * width, tokens = SEQUENCES * LENGTH;
    const oracle o = oracle_create((norm_case){SEQUENCES, ROWS, width});
    const moert_rope_scheme scheme = {.interleaved = rotation.interleaved,
                                      .width = moert_rotation_width(&rotation, width),
                                      .theta = 1e4};
    problem separate, fused;
    moert_buffer *table;
    upload_problem(&o, 0, ROWS, SEQUENCES, &separate);
    upload_problem(&o, 0, ROWS, SEQUENCES, &fused);
    ASSERT_OK(moert_rope_table_create(test_device, &scheme, LENGTH, &table));
    rotation.table = owned_buffer(table);
    rotation.heads = HEADS;
    rotation.length = LENGTH;
    separate.backward.dx = separate.backward.dy;
    ASSERT_OK(moert_norm_run(&separate.forward));
    ASSERT_OK(moert_rope(&rotation, tokens, width, false, separate.forward.y));
    ASSERT_OK(moert_rope(&rotation, tokens, width, true, separate.backward.dx));
    ASSERT_OK(moert_norm_backward(&separate.backward));
    fused.forward.rotation = fused.backward.rotation = rotation;
    fused.backward.dx = NULL;
    fused.backward.bf16 = unset_bf16(n);
    ASSERT_OK(moert_norm_run(&fused.forward));
    ASSERT_OK(moert_norm_backward(&fused.backward));
    const float *y = download_floats(separate.forward.y, n);
    assert_same_bits_in("rotated y", fused.forward.y, y, n);
    fused.forward.bf16 = unset_bf16(n);
    ASSERT_OK(moert_norm_run(&fused.forward));
    assert_bf16("rotated y in bf16", fused.forward.bf16, y, n);
    assert_same_bits_in("gradient of the weight", fused.backward.partial,
                        download_floats(separate.backward.partial, SEQUENCES * width),
                        SEQUENCES * width);
    assert_bf16("dx", fused.backward.bf16, download_floats(separate.backward.dx, n), n);
}

TEST(test_norm_of_rotated_heads_has_the_bits_of_a_norm_and_a_rotation) {
    const size_t widths[] = {2, 20, 24, 128, 256};
    for (size_t i = 0; i < MOERT_COUNT(widths); i++)
        compare_rotated(widths[i], (moert_rotation){.width = 0});
    const moert_rotation parts[] = {{.width = 64},
                                    {.width = 8},
                                    {.width = 20},
                                    {.width = 32, .offset = 12},
                                    {.width = 64, .interleaved = true}};
    const int32_t documents[SEQUENCES * LENGTH] = {0, 1, 2, 3, 0, 1, 2, 0, 0, 0, 1, 2, 3, 4};
    for (size_t i = 0; i < MOERT_COUNT(parts); i++) {
        moert_rotation packed = parts[i];
        packed.positions = upload(documents, sizeof documents);
        compare_rotated(128, parts[i]);
        compare_rotated(67, parts[i]);
        compare_rotated(128, packed);
    }
}

/* Changes a valid norm of 4 rows of 4 floats, and checks that it is refused. */
#define REFUSED(text, change)                                                                      \
    do {                                                                                           \
        moert_norm norm = {.rows = 4, .width = 4, .x = x, .weight = x, .y = x, .rstd = x};         \
        change;                                                                                    \
        ASSERT_FAILS(moert_norm_run(&norm), MOERT_ERROR_USAGE, text);                              \
    } while (0)

TEST(test_norm_refuses_rows_that_do_not_divide) {
    moert_buffer *x = unset_floats(16);
    const moert_norm_gradient backward = {.sequences = 3,
                                          .rows = 4,
                                          .width = 4,
                                          .x = x,
                                          .weight = x,
                                          .rstd = x,
                                          .dy = x,
                                          .dx = x,
                                          .partial = x};
    ASSERT_FAILS(moert_norm_backward(&backward), MOERT_ERROR_USAGE, "3 sequences");
    REFUSED("rows of width 0", norm.width = 0);
    REFUSED("needs a buffer for its results", norm.y = NULL);
    REFUSED("no multiple of 3, the heads of a token",
            norm.rotation = ((moert_rotation){.table = x, .heads = 3, .length = 1}));
    REFUSED("exceed the rotary table", (norm.rows = 40, norm.rotation = (moert_rotation){
                                                            .table = x, .heads = 1, .length = 40}));
}

TESTS(open_test_device, close_test_device)

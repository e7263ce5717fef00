// run: check=1 all=1gpu,1san
/* RMSNorm against a float64 forward and its central differences. */
#include "nn/nn.h"
#include "support/test.h"

static const float epsilon = 1e-5f;

typedef struct norm_case {
    size_t sequences, rows, width;
} norm_case;

static const norm_case cases[] = {{0, 0, 20},   {2, 0, 16}, {1, 4, 2},   {1, 1, 20},
                                  {3, 51, 20},  {2, 6, 64}, {5, 5, 17},  {2, 34, 100},
                                  {1, 70, 256}, {3, 3, 33}, {2, 300, 20}};
#define CASES MOERT_COUNT(cases)

/* The oracle over all rows. The loss is sum(dy * y), so the gradients of the loss are the results
 * of backward. */
typedef struct oracle {
    norm_case shape;
    double *x, *weight, *dy, *y, *rstd;
    size_t first, end; /* the loss sums rows [first, end) */
} oracle;

static double oracle_forward(void *context) {
    oracle *o = context;
    double loss = 0;
    const size_t width = o->shape.width;
    for (size_t r = o->first; r < o->end; r++) {
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
    const size_t n = shape.rows * shape.width;
    oracle o = {.shape = shape, .end = shape.rows};
    o.x = random_doubles("x", n);
    o.weight = random_doubles("weight", shape.width);
    o.dy = random_doubles("dy", n);
    o.y = random_doubles("y", n);
    o.rstd = random_doubles("rstd", shape.rows);
    oracle_forward(&o);
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
    for (size_t i = 0; i < CASES; i++) {
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

TEST(test_norm_backward_agrees_with_central_differences) {
    for (size_t i = 0; i < CASES; i++) {
        const norm_case shape = cases[i];
        oracle o = oracle_create(shape);
        const gradients got = device_backward(&o, 0, shape.rows, shape.sequences, i % 2 != 0, NULL);
        for (size_t s = 0; s < shape.sequences; s++) {
            const size_t rows = shape.rows / shape.sequences, at = s * rows * shape.width;
            o.first = s * rows;
            o.end = o.first + rows;
            assert_gradient("dx", got.dx + at,
                            (differentiated){o.x + at, rows * shape.width, 7, oracle_forward, &o});
            assert_gradient("partial", got.partial + s * shape.width,
                            (differentiated){o.weight, shape.width, 3, oracle_forward, &o});
        }
    }
}

/* Computes dx[rows,width] and partial[width] over all rows, by the formulas. */
static void differentiate(const oracle *o, double *dx, double *partial) {
    const size_t width = o->shape.width;
    for (size_t r = 0; r < o->shape.rows; r++) {
        const double *x = o->x + r * width, *dy = o->dy + r * width, rstd = o->rstd[r];
        double sum = 0;
        for (size_t c = 0; c < width; c++)
            sum += dy[c] * o->weight[c] * x[c];
        for (size_t c = 0; c < width; c++) {
            dx[r * width + c] =
                rstd * dy[c] * o->weight[c] - x[c] * rstd * rstd * rstd / (double)width * sum;
            partial[c] += dy[c] * x[c] * rstd;
        }
    }
}

TEST(test_norm_of_wide_rows_agrees_with_float64) {
    const size_t rows = 70, widths[] = {2048, 2100, 4200, 16388};
    for (size_t i = 0; i < MOERT_COUNT(widths); i++) {
        const size_t width = widths[i], n = rows * width;
        oracle o = oracle_create((norm_case){1, rows, width});
        double *dx = test_alloc(n * sizeof *dx), *partial = test_alloc(width * sizeof *partial);
        differentiate(&o, dx, partial);
        gradients got = device_backward(&o, 0, rows, 1, false, NULL);
        assert_near("dx", got.dx, dx, n, 1e-5);
        assert_near("partial", got.partial, partial, width, 1e-5);
    }
}

TEST(test_norm_backward_accumulates) {
    oracle o = oracle_create((norm_case){3, 51, 20});
    double *before = random_doubles("before", 51 * 20);
    gradients alone = device_backward(&o, 0, 51, 3, false, NULL);
    gradients added = device_backward(&o, 0, 51, 3, false, before);
    for (size_t i = 0; i < 51 * 20; i++)
        before[i] += alone.dx[i];
    assert_near("dx", added.dx, before, 51 * 20, 1e-6);
    assert_same_bits("partial", added.partial, alone.partial, 3 * 20);
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

/* Compares norm and rotation of heads in two steps with one call, which is one kernel where it can
 * be, and its result in bf16. Then compares the gradients, which the second way writes in bf16. */
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

TEST(test_norm_refuses_rows_that_do_not_divide) {
    moert_buffer *x = unset_floats(16);
    const moert_norm_gradient norm = {.sequences = 3,
                                      .rows = 4,
                                      .width = 4,
                                      .x = x,
                                      .weight = x,
                                      .rstd = x,
                                      .dy = x,
                                      .dx = x,
                                      .partial = x};
    assert_int_equal(moert_norm_backward(&norm), MOERT_ERROR_USAGE);
    moert_norm none = {.rows = 4, .epsilon = epsilon, .x = x, .weight = x, .y = x, .rstd = x};
    assert_int_equal(moert_norm_run(&none), MOERT_ERROR_USAGE);
    none = (moert_norm){.rows = 2, .width = 8, .x = x, .weight = x, .rstd = x};
    ASSERT_FAILS(moert_norm_run(&none), MOERT_ERROR_USAGE, "without a buffer");
    none.y = x;
    none.rotation = (moert_rotation){.table = x, .heads = 3, .length = 1};
    ASSERT_FAILS(moert_norm_run(&none), MOERT_ERROR_USAGE, "no tokens of 3 heads");
    none.rotation = (moert_rotation){.table = x, .heads = 1, .length = 40};
    none.rows = 40;
    ASSERT_FAILS(moert_norm_run(&none), MOERT_ERROR_USAGE, "exceed the rotary table");
}

TESTS(open_test_device, close_test_device)

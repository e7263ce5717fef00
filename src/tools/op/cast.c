/* The operations cast and interleave of moert-op. */
#include "base/memory.h"
#include "base/dtype.h"
#include "moert/quantize.h"
#include "tools/op/op.h"

static unsigned from, to, granularity;
static bool inverse;

static const moert_option cast_options[] = {
    {"to", MOERT_OPTION_CHOICE, &to, "f32", MOERT_FILE_OP_DTYPE_WORDS, "dtype of y"},
    {"from", MOERT_OPTION_CHOICE, &from, "file", "file|" MOERT_FILE_OP_DTYPE_WORDS,
     "dtype of x, if the file stores it as u8"},
};

static const moert_option interleave_options[] = {
    {"granularity", MOERT_OPTION_CHOICE, &granularity, "32", "1|8|32|I",
     "columns in each run of gate or of up; I = halves"},
    {"inverse", MOERT_OPTION_FLAG, &inverse, "0", NULL, "from alternating runs to halves"},
};

/* ---- cast ---- */

static moert_status find_type(const moert_tensor *x, moert_dtype *type) {
    const moert_dtype first = from > 0 ? (moert_dtype)(from - 1) : MOERT_DTYPE_F32;
    const moert_dtype last = from > 0 ? first : MOERT_DTYPE_E5M2;
    for (*type = first; *type <= last; (*type)++)
        if (moert_file_type_of(*type) == x->type ||
            (from > 0 && moert_file_type_holds(x->type, *type)))
            return MOERT_OK;
    return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor 'x' is %s, not %s", x->file,
                      moert_file_type_text(x->type),
                      from > 0 ? moert_dtype_name(first)
                               : MOERT_FILE_OP_DTYPE_WORDS "; --from says what U8 holds");
}

/* Casts the n elements of *values to `target`, into a new buffer; does nothing if the dtypes are
 * equal. */
static moert_status cast_step(moert_file_op_job *job, moert_dtype source, moert_dtype target,
                              size_t n, moert_buffer **values) {
    moert_cast step = {sizeof step, source, target, n, *values, NULL};
    if (source == target)
        return MOERT_OK;
    MOERT_TRY(moert_file_op_buffer(job, n * moert_dtype_bits(target) / 8, &step.target));
    *values = step.target;
    return moert_cast_run(&step);
}

static moert_status cast(moert_file_op_job *job) {
    const moert_tensor *x;
    moert_dtype type;
    moert_buffer *values;
    MOERT_TRY(moert_file_op_find(job, "x", 0, &x));
    MOERT_TRY(find_type(x, &type));
    MOERT_TRY(moert_file_op_upload(job, x->data, x->bytes, &values));
    if (type != to) {
        MOERT_TRY(cast_step(job, type, MOERT_DTYPE_F32, x->elements, &values));
        MOERT_TRY(cast_step(job, MOERT_DTYPE_F32, (moert_dtype)to, x->elements, &values));
    }
    moert_tensor_spec y = {"y", moert_file_type_of((moert_dtype)to), x->rank, {0}};
    for (size_t i = 0; i < x->rank; i++)
        y.shape[i] = x->shape[i];
    return moert_file_op_result(job, y, values);
}

/* ---- interleave ---- */

/* Interleaves the elements of x[M,2I], or the rows of K elements of x[G,2I,K]. */
static moert_status interleave(moert_file_op_job *job) {
    static const size_t runs[] = {1, 8, 32};
    const moert_tensor *x;
    moert_buffer *source, *target;
    MOERT_TRY(moert_file_op_find(job, "x", 0, &x));
    if (x->rank != 2 && x->rank != 3)
        return MOERT_FAIL(ERROR_MISMATCH, "%s: tensor 'x' has %zu dimensions, not 2 or 3", x->file,
                          x->rank);
    if (x->shape[1] == 0 || x->shape[1] % 2 != 0)
        return MOERT_FAIL(
            ERROR_MISMATCH,
            "%s: tensor 'x' has %zu columns of gate and up; expected an even number above 0",
            x->file, x->shape[1]);
    const size_t width = x->shape[1] / 2, within = x->rank == 3 ? x->shape[2] : 1;
    MOERT_TRY(moert_file_op_upload(job, x->data, x->bytes, &source));
    MOERT_TRY(moert_file_op_buffer(job, x->bytes, &target));
    if (x->bytes > 0)
        MOERT_TRY(moert_interleave_run(&(moert_interleave){
            .size = sizeof(moert_interleave),
            .rows = x->shape[0],
            .width = width,
            .granularity = granularity < MOERT_COUNT(runs) ? runs[granularity] : width,
            .element_bytes = within * moert_file_type_bytes(x->type),
            .inverse = inverse,
            .from = source,
            .to = target}));
    return moert_file_op_result(
        job, (moert_tensor_spec){"y", x->type, x->rank, {x->shape[0], x->shape[1], within}},
        target);
}

MOERT_FILE_OP(
    cast, "cast",
    "x of any shape, f32|f16|bf16|e4m3|e5m2 -> y of the same shape, rounded to nearest even");

MOERT_FILE_OP(interleave, "interleave",
              "x[M,2I], or weights x[G,2I,K], of any type -> y likewise: the halves [gate | up] in "
              "alternating runs of columns (of rows of K)");

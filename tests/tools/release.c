/*
 * release: writes a model's weights in the low-precision forms in which large models are published,
 * for the end-to-end tests. moert-op quantizes them.
 *
 *   release gather --form FORM --model M.safetensors --output X.safetensors
 *   release spread --form FORM --model M.safetensors --quantized Q.safetensors
 *                  --values V.safetensors --low L.safetensors --plain P.safetensors
 *
 * gather stacks the matrices that the form quantizes (experts, attention) into one matrix x. Each
 * begins at a row where the form begins a block; the rest is zero. spread reads that matrix
 * quantized (q, scale) and dequantized (x), and writes the model twice: L with payloads and scales
 * under the released names, P with the same values as plain float32.
 */
#include "base/text.h"
#include "io/safetensors.h"
#include "tools/check.h"
#include "tools/common/options.h"

enum { FP8, MXFP4 };
static const struct {
    size_t block_rows, block_columns, elements_per_byte, scale_bytes;
    const char *payload_suffix, *scales_suffix;
} forms[] = {
    [FP8] = {128, 128, 1, 4, "", "_scale_inv"},
    [MXFP4] = {1, 32, 2, 1, "_blocks", "_scales"},
};

static unsigned form;
static const char *model_path, *output_path, *quantized_path, *values_path, *low_path, *plain_path;

static const moert_option options[] = {
    {"form", MOERT_OPTION_CHOICE, &form, "fp8", "fp8|mxfp4", "of the released weights"},
    {"model", MOERT_OPTION_STRING, &model_path, "", NULL, "the plain weights"},
    {"output", MOERT_OPTION_STRING, &output_path, "", NULL, "gather: x"},
    {"quantized", MOERT_OPTION_STRING, &quantized_path, "", NULL, "spread: q and scale"},
    {"values", MOERT_OPTION_STRING, &values_path, "", NULL, "spread: x"},
    {"low", MOERT_OPTION_STRING, &low_path, "", NULL, "spread: the released weights"},
    {"plain", MOERT_OPTION_STRING, &plain_path, "", NULL, "spread: the same values as float32"},
};
enum { OPTIONS = MOERT_COUNT(options), NAME_BYTES = 200 };

/* A tensor of the model, and the rows of its matrices [n,k] in x. */
typedef struct entry {
    const moert_tensor *tensor;
    bool quantized, transposed; /* transposed: the tensor holds [k,n] */
    size_t matrices, n, k, first_row;
    char payload[NAME_BYTES], scales[NAME_BYTES]; /* tensor names in the low-precision file */
} entry;

typedef struct listing {
    moert_tensors *model;
    entry *entries;
    size_t count, rows, columns; /* dimensions of x; count: number of entries */
} listing;

static bool is_quantized(const moert_tensor *t) {
    if (form == MXFP4)
        return t->rank == 3 && moert_text_ends_with(t->name, "_proj");
    return t->rank == 2 && moert_text_ends_with(t->name, "_proj.weight");
}

static void list(listing *l) {
    check(moert_tensors_open(model_path, &l->model));
    l->count = moert_tensors_count(l->model);
    check(MOERT_NEW_ARRAY(&l->entries, l->count));
    for (size_t i = 0; i < l->count; i++) {
        const moert_tensor *t = moert_tensors_at(l->model, i);
        entry *e = &l->entries[i];
        *e = (entry){.tensor = t, .quantized = is_quantized(t), .transposed = t->rank == 3};
        if (!e->quantized)
            continue;
        e->matrices = e->transposed ? t->shape[0] : 1;
        e->n = e->transposed ? t->shape[2] : t->shape[0];
        e->k = t->shape[1];
        e->first_row = l->rows;
        snprintf(e->payload, NAME_BYTES, "%s%s", t->name, forms[form].payload_suffix);
        snprintf(e->scales, NAME_BYTES, "%s%s", t->name, forms[form].scales_suffix);
        l->rows += moert_round_up(e->matrices * e->n, forms[form].block_rows);
        l->columns = moert_max(l->columns, moert_round_up(e->k, forms[form].block_columns));
    }
}

/* Copies an entry's values into x or, with `out`, from x into `values`. */
static void move(const listing *l, const entry *e, float *x, float *values, bool out) {
    for (size_t row = 0; row < e->matrices * e->n; row++)
        for (size_t k = 0; k < e->k; k++) {
            const size_t matrix = row / e->n, n = row % e->n;
            float *value =
                values + (e->transposed ? (matrix * e->k + k) * e->n + n : row * e->k + k);
            float *element = x + (e->first_row + row) * l->columns + k;
            *(out ? value : element) = *(out ? element : value);
        }
}

static void gather(listing *l) {
    const moert_tensor_spec spec = {"x", MOERT_FILE_F32, 2, {l->rows, l->columns}};
    moert_tensor_writer *writer;
    float *x, *values;
    check(MOERT_NEW_ARRAY(&x, l->rows * l->columns));
    for (const entry *e = l->entries; e < l->entries + l->count; e++) {
        if (!e->quantized)
            continue;
        check(moert_alloc(&values, e->tensor->elements, sizeof *values));
        check(moert_tensor_read_f32(e->tensor, 0, e->tensor->elements, values));
        move(l, e, x, values, false);
        free(values);
    }
    check(moert_writer_open(output_path, &spec, 1, NULL, true, &writer));
    check(moert_writer_put(writer, "x", 0, l->rows * l->columns, x));
    free(x);
    check(moert_writer_close(writer));
}

static moert_tensor_spec spec_of(const moert_tensor *t) {
    moert_tensor_spec spec = {t->name, t->type, t->rank, {0}};
    memcpy(spec.shape, t->shape, sizeof spec.shape);
    return spec;
}

/* Describes the tensors of the low-precision file; returns their number. */
static size_t low_specs(const listing *l, moert_tensor_spec *specs) {
    size_t count = 0;
    for (size_t i = 0; i < l->count; i++) {
        const entry *e = &l->entries[i];
        const size_t wide = moert_ceil_div(e->k, forms[form].block_columns);
        if (!e->quantized) {
            specs[count++] = spec_of(e->tensor);
        } else if (form == MXFP4) {
            specs[count++] =
                (moert_tensor_spec){e->payload, MOERT_FILE_U8, 4, {e->matrices, e->n, wide, 16}};
            specs[count++] =
                (moert_tensor_spec){e->scales, MOERT_FILE_U8, 3, {e->matrices, e->n, wide}};
        } else {
            specs[count++] = (moert_tensor_spec){e->payload, MOERT_FILE_F8_E4M3, 2, {e->n, e->k}};
            specs[count++] = (moert_tensor_spec){
                e->scales, MOERT_FILE_F32, 2, {moert_ceil_div(e->n, 128), wide}};
        }
    }
    return count;
}

/* The first `bytes` of each row of a matrix whose rows are `stride` bytes apart, to be written to a
 * tensor with elements of `element` bytes. */
typedef struct byte_rows {
    const char *source;
    size_t stride, rows, bytes, element;
} byte_rows;

static void put_rows(moert_tensor_writer *writer, const char *name, const byte_rows *r) {
    for (size_t row = 0; row < r->rows; row++)
        check(moert_writer_put(writer, name, row * r->bytes / r->element, r->bytes / r->element,
                               r->source + row * r->stride));
}

static void put_low(const listing *l, const entry *e, const moert_tensor *q,
                    const moert_tensor *scale, moert_tensor_writer *writer) {
    const size_t stride = l->columns / forms[form].elements_per_byte,
                 height = forms[form].block_rows;
    const size_t scale_bytes = forms[form].scale_bytes, rows = e->matrices * e->n;
    const size_t scale_stride = l->columns / forms[form].block_columns * scale_bytes;
    const size_t wide = moert_ceil_div(e->k, forms[form].block_columns);
    const byte_rows payload = {(const char *)q->data + e->first_row * stride, stride, rows,
                               e->k / forms[form].elements_per_byte, 1};
    const byte_rows scales = {(const char *)scale->data + e->first_row / height * scale_stride,
                              scale_stride, moert_ceil_div(rows, height), wide * scale_bytes,
                              scale_bytes};
    put_rows(writer, e->payload, &payload);
    put_rows(writer, e->scales, &scales);
}

/* Writes the low-precision file from q and scale, and the plain file from x. */
static void write_both(const listing *l, const moert_tensor *q, const moert_tensor *scale,
                       float *x) {
    moert_tensor_spec *specs;
    moert_tensor_writer *low, *plain;
    float *values;
    check(MOERT_NEW_ARRAY(&specs, 2 * l->count));
    check(moert_writer_open(low_path, specs, low_specs(l, specs), NULL, true, &low));
    for (size_t i = 0; i < l->count; i++)
        specs[i] = spec_of(l->entries[i].tensor);
    check(moert_writer_open(plain_path, specs, l->count, NULL, true, &plain));
    free(specs);
    for (const entry *e = l->entries; e < l->entries + l->count; e++) {
        const moert_tensor *t = e->tensor;
        if (e->quantized) {
            put_low(l, e, q, scale, low);
            check(moert_alloc(&values, t->elements, sizeof *values));
            move(l, e, x, values, true);
            check(moert_writer_put(plain, t->name, 0, t->elements, values));
            free(values);
        } else {
            check(moert_writer_put(low, t->name, 0, t->elements, t->data));
            check(moert_writer_put(plain, t->name, 0, t->elements, t->data));
        }
    }
    check(moert_writer_close(low));
    check(moert_writer_close(plain));
}

static void spread(listing *l) {
    const size_t wide = l->columns / forms[form].block_columns;
    const size_t payload[] = {l->rows, l->columns / forms[form].elements_per_byte};
    const size_t scales[] = {l->rows / forms[form].block_rows, wide};
    const size_t whole[] = {l->rows, l->columns};
    const moert_tensor *q, *scale, *values;
    moert_tensors *quantized, *dequantized;
    float *x;
    check(moert_tensors_open(quantized_path, &quantized));
    check(moert_tensors_open(values_path, &dequantized));
    check(moert_tensors_get(quantized, "q", 2, payload, &q));
    check(moert_tensors_get(quantized, "scale", 2, scales, &scale));
    check(moert_tensors_get(dequantized, "x", 2, whole, &values));
    check(moert_alloc(&x, values->elements, sizeof *x));
    check(moert_tensor_read_f32(values, 0, values->elements, x));
    write_both(l, q, scale, x);
    free(x);
    moert_tensors_close(dequantized);
    moert_tensors_close(quantized);
}

int main(int argc, char **argv) {
    const bool gathers = argc > 1 && strcmp(argv[1], "gather") == 0;
    listing l = {.count = 0};
    bool help = false;
    if (!gathers && (argc < 2 || strcmp(argv[1], "spread") != 0)) {
        fputs("usage: release gather|spread --form fp8|mxfp4 --model FILE ...\n", stderr);
        return 2;
    }
    check(moert_options_parse(options, OPTIONS, argc - 1, argv + 1, &help));
    list(&l);
    (gathers ? gather : spread)(&l);
    free(l.entries);
    moert_tensors_close(l.model);
    return 0;
}

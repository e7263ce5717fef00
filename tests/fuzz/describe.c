/* Makes descriptions of ops from bytes: first a description that is legal by construction, then
 * edits of its fields. */
#include <float.h>
#include <math.h>
#include <stddef.h>
#include <string.h>

#include "base/memory.h"
#include "fuzz/fuzz_op.h"
#include "op/fields.h"

#define PICK(table, byte) ((table)[(byte) % MOERT_COUNT(table)])

/* ---- legal by construction ---- */

static void choose_sizes(const fuzz_input *in, moert_op_options *o) {
    static const uint8_t groups[] = {2, 1, 3, 4, 5, 8, 2, 0};
    static const uint8_t rows[] = {4, 1, 2, 3, 5, 7, 8, 13, 16, 17, 31, 32, 33, 40, 9, 0};
    static const uint8_t widths[] = {4, 1, 2, 3, 5, 8, 15, 16, 17, 31, 32, 33, 40, 64, 10, 6};
    static const uint8_t multiples[] = {0, 1, 2, 4, 16, 32, 128, 0};
    o->kind = (moert_op_kind)(in->kind % MOERT_OP_KINDS);
    o->groups = PICK(groups, in->groups);
    o->rows = PICK(rows, in->rows);
    o->n = PICK(widths, in->n);
    o->k = PICK(widths, in->k);
    o->row_multiple = PICK(multiples, in->row_multiple);
}

static void choose_permute(const fuzz_input *in, moert_op_options *o) {
    const unsigned byte = in->permute;
    o->permute = (moert_op_permute)(byte % 3);
    o->topk = 1 + byte / 3 % 4;
    if ((o->kind == MOERT_OP_GLU && o->permute == MOERT_OP_PERMUTE_Y) ||
        (o->kind == MOERT_OP_DGLU && o->permute == MOERT_OP_PERMUTE_X))
        o->permute = MOERT_OP_PERMUTE_NONE;
}

/* Each bit of the two bytes switches a field on; the last two bits are fallback and discrete
 * weights. */
static void choose_switches(const fuzz_input *in, moert_op_options *o) {
    const unsigned bits = in->switches[0] | (unsigned)in->switches[1] << 8;
    _Static_assert(MOERT_OP_FIELDS <= 14, "the bits of switches");
    for (size_t i = 0; i < MOERT_OP_FIELDS; i++)
        *moert_op_flag(o, &moert_op_fields[i]) =
            (bits >> i & 1) != 0 && moert_op_has_field(o->kind, &moert_op_fields[i]);
    o->fallback = (bits >> 14 & 1) != 0;
    o->weight.discrete = (bits >> 15 & 1) != 0;
    o->norm = false; /* see choose_quantized */
    o->accumulate = o->accumulate && !o->beta;
    o->bias_scale = o->bias_scale && o->bias;
    o->row_weight = o->row_weight && o->permute == MOERT_OP_PERMUTE_Y;
    if (o->kind <= MOERT_OP_GEMM_WGRAD)
        o->prob = o->prob && !o->beta && !o->accumulate && !o->bias;
}

/* All operands have the same dtype. */
static void choose_types(const fuzz_input *in, moert_op_options *o) {
    static const moert_dtype types[] = {MOERT_DTYPE_F32, MOERT_DTYPE_F16, MOERT_DTYPE_BF16,
                                        MOERT_DTYPE_E4M3, MOERT_DTYPE_E5M2};
    const unsigned first = in->types[0], second = in->types[1];
    o->x.type = o->y.type = o->weight.type = PICK(types, first);
    moert_op_operand(o, moert_op_roles_of(o->kind).result)->type = PICK(types, first / 5);
    o->c.type = PICK(types, second);
    o->bias_type = types[second / 5 % 3]; /* bias never has an 8-bit dtype */
}

/* Chooses the GLU, and a width that consists of whole pairs of interleaved runs. */
static void choose_glu(const fuzz_input *in, moert_op_options *o) {
    static const moert_glu_form forms[] = {
        MOERT_GLU_SWIGLU,
        MOERT_GLU_GPT_OSS,
        {false, 7.0f, 1.702f, 1.0f, 0},
        {true, 0.5f, 1.0f, 0.0f, 0},
        {false, FLT_MIN, 0.0f, 0.0f, 0},
        {false, 3.0f, -2.0f, -1.0f, 0},
        {false, 1.0f, NAN, -0.0f, 0},
    };
    static const uint8_t runs[] = {0, 1, 8, 32, 255};
    size_t *const columns = o->kind == MOERT_OP_GLU ? &o->n : &o->k;
    const size_t unit = o->kind == MOERT_OP_GLU ? 2 : 1;
    const size_t run = PICK(runs, in->interleave);
    o->glu = PICK(forms, in->glu);
    if (o->glu.interleaved) {
        o->interleave = run == 1;
        *columns = (*columns + unit - 1) / unit * unit;
        return;
    }
    const size_t whole = run == 0 || run == 255 ? unit : unit * run;
    *columns = (*columns + whole - 1) / whole * whole;
    o->interleave = run == 255 ? *columns / unit : run;
}

/* Chooses strides that may be wider than a row; each matrix takes two bits of the byte. */
static void choose_strides(const fuzz_input *in, moert_op_options *o) {
    static const uint8_t gaps[] = {0, 1, 3, 8};
    const unsigned byte = in->strides;
    static const moert_op_buffer rows[] = {MOERT_OP_BUFFER_x, MOERT_OP_BUFFER_y, MOERT_OP_BUFFER_c,
                                           MOERT_OP_BUFFER_d};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const unsigned bits = byte >> (2 * i) & 3;
        const size_t width = moert_op_columns(o, rows[i]);
        moert_op_operand(o, rows[i])->stride = bits == 0 ? 0 : (ptrdiff_t)(width + gaps[bits]);
    }
}

/* Chooses the block scales of one operand from two bytes of the input. */
static void quantize(const fuzz_input *in, size_t which, moert_operand *operand) {
    const unsigned first = in->how[which][0];
    const unsigned second = in->how[which][1];
    moert_quantizer how = MOERT_QUANTIZER_INIT;
    how.format = (moert_format)(first % 5);
    const bool nvfp4 = how.format == MOERT_FORMAT_NVFP4;
    how.axis = (moert_axis)(first / 5 % 3);
    how.scale_rounding = (moert_scale_rounding)(first / 15 % 2);
    how.rounding =
        (moert_rounding)(first / 30 % (moert_format_element_bits(how.format) == 4 ? 4u : 2u));
    how.nvfp4_rule = (moert_nvfp4_rule)(second % 3);
    how.transposed = (second >> 2 & 1) != 0;
    how.hadamard = how.group_scales = (second >> 3 & 1) != 0 && nvfp4;
    how.seed = second;
    operand->how = how;
    operand->stride = 0;
    operand->global = (second >> 4 & 1) != 0 && nvfp4;
    operand->scales = how.format == MOERT_FORMAT_FP8_BLOCK ? MOERT_SCALES_LINEAR
                                                           : (moert_scale_layout)(second / 32 % 3);
}

static void quantize_operand(const fuzz_input *in, size_t which, moert_op_options *o,
                             moert_operand *operand) {
    const bool weight = operand == &o->weight;
    const bool gathered = operand == (o->permute == MOERT_OP_PERMUTE_X ? &o->x : &o->y) &&
                          o->permute != MOERT_OP_PERMUTE_NONE;
    quantize(in, which, operand);
    moert_quantizer *const how = &operand->how;
    if (gathered && how->axis == MOERT_AXIS_COLUMN)
        how->axis = MOERT_AXIS_ROW;
    how->hadamard = false;
    how->group_scales = how->group_scales && operand->global;
    how->transposed =
        how->transposed && (!weight                        ? how->axis == MOERT_AXIS_COLUMN
                            : how->axis == MOERT_AXIS_TILE ? how->format == MOERT_FORMAT_FP8_BLOCK
                                                           : true);
    if (weight && how->transposed && operand->scales == MOERT_SCALES_TILED_WHOLE)
        operand->scales = MOERT_SCALES_TILED;
}

static void quantize_result(const fuzz_input *in, size_t which, moert_operand *operand) {
    quantize(in, which, operand);
    moert_quantizer *const how = &operand->how;
    if (which == 3) /* operand 3 is the column result */
        how->axis = MOERT_AXIS_COLUMN;
    how->transposed = how->transposed && how->axis == MOERT_AXIS_COLUMN;
    how->hadamard = how->hadamard && how->axis == MOERT_AXIS_COLUMN;
    operand->global = how->group_scales = false;
}

/* Quantizes some of the operands, the result and the column result. Two bits of a
 * byte decide for both operands, two for the result, and two for the column result. */
static void choose_quantized(const fuzz_input *in, moert_op_options *o) {
    const unsigned byte = in->quantized;
    const bool wgrad = o->kind == MOERT_OP_GEMM_WGRAD;
    const moert_op_roles is = moert_op_roles_of(o->kind);
    moert_operand *const result = moert_op_operand(o, is.result);
    if ((byte & 3) == 1) {
        quantize_operand(in, 0, o, moert_op_operand(o, is.first));
        quantize_operand(in, 1, o, moert_op_operand(o, is.second));
    }
    if ((byte >> 2 & 3) != 1 || wgrad || (result != &o->d && o->permute != MOERT_OP_PERMUTE_NONE))
        return;
    quantize_result(in, 2, result);
    if ((byte >> 4 & 3) == 1)
        quantize_result(in, 3, &o->column);
    o->norm = byte >> 6 == 1 && result->how.format != MOERT_FORMAT_FP8_BLOCK &&
              o->column.how.format != MOERT_FORMAT_FP8_BLOCK;
    o->beta = o->beta && o->kind == MOERT_OP_DGLU;
    o->accumulate = o->row_weight = false;
}

/* Chooses the two backends equally often. */
static void choose_backend(const fuzz_input *in, moert_op_options *o) {
    static const char *const backends[] = {"reference", "reference", "portable", "reference",
                                           "portable",  NULL,        "auto",     "portable"};
    o->backend = PICK(backends, in->backend);
}

/* ---- edits ---- */

typedef enum field_type { BOOL, ENUM, WORD, FLOAT } field_type;

/* clang-format off */
#define ROW(type, name) {type, offsetof(moert_op_options, name)},
#define OPERAND(o, ...)                                                                            \
    ROW(ENUM, o.type) ROW(WORD, o.stride) ROW(BOOL, o.discrete) ROW(WORD, o.how.size)              \
    ROW(ENUM, o.how.format) ROW(ENUM, o.how.axis) ROW(ENUM, o.how.scale_rounding)                  \
    ROW(ENUM, o.how.nvfp4_rule) ROW(ENUM, o.how.rounding) ROW(WORD, o.how.seed)                    \
    ROW(BOOL, o.how.transposed) ROW(BOOL, o.how.hadamard) ROW(BOOL, o.how.group_scales)            \
    ROW(ENUM, o.scales) ROW(BOOL, o.global)
#define SWITCH(name, ...) ROW(BOOL, name)
static const struct {
    field_type type;
    size_t offset;
} fields[] = {
    MOERT_OP_OPERAND_TABLE(OPERAND) MOERT_OP_FIELD_TABLE(SWITCH)
    ROW(WORD, size) ROW(ENUM, kind) ROW(BOOL, fallback) ROW(WORD, groups) ROW(WORD, rows)
    ROW(WORD, n) ROW(WORD, k) ROW(WORD, row_multiple) ROW(ENUM, bias_type) ROW(ENUM, permute)
    ROW(WORD, topk) ROW(BOOL, glu.interleaved) ROW(FLOAT, glu.limit) ROW(FLOAT, glu.alpha)
    ROW(FLOAT, glu.offset) ROW(WORD, interleave)
};
/* clang-format on */

/* Returns a power of two, a power of two minus or plus one, a negative power of two, or the size of
 * a struct. */
static uint64_t word_of(unsigned byte) {
    const uint64_t power = 1ull << byte % 64, words[] = {power, power - 1, power + 1, -power};
    return byte == 254   ? sizeof(moert_quantizer)
           : byte == 255 ? sizeof(moert_op_options)
                         : words[byte / 64];
}

/* Sets one field to any value of its type. */
static void edit(moert_op_options *options, unsigned field, unsigned byte) {
    static const uint32_t enums[] = {0, 1, 2, 3, 4, 5, 6, 7, 77, INT32_MAX, 1u << 31, UINT32_MAX};
    static const float floats[] = {0.0f,    -0.0f,    1.0f,     -1.0f,     1e-40f, FLT_MIN,
                                   FLT_MAX, -FLT_MAX, INFINITY, -INFINITY, NAN};
    const uint64_t word = word_of(byte);
    char *const at = (char *)options + fields[field].offset;
    switch (fields[field].type) {
    case BOOL:
        *(bool *)at = byte % 2 != 0;
        if (byte == 255)
            options->backend = "quantum";
        break;
    case ENUM:
        memcpy(at, &PICK(enums, byte), sizeof enums[0]);
        break;
    case WORD:
        memcpy(at, &word, sizeof word);
        break;
    case FLOAT:
        memcpy(at, &PICK(floats, byte), sizeof floats[0]);
        break;
    }
}

bool fuzz_describe(const fuzz_input *in, moert_op_options *options) {
    const size_t edits = fuzz_edits(in->field_edits, MOERT_COUNT(in->fields));
    *options = (moert_op_options)MOERT_OP_OPTIONS_INIT;
    choose_sizes(in, options);
    choose_permute(in, options);
    choose_switches(in, options);
    choose_types(in, options);
    if (options->kind >= MOERT_OP_GLU)
        choose_glu(in, options);
    choose_strides(in, options);
    choose_quantized(in, options);
    choose_backend(in, options);
    for (size_t i = 0; i < edits; i++)
        edit(options, in->fields[i][0] % MOERT_COUNT(fields), in->fields[i][1]);
    return edits == 0;
}

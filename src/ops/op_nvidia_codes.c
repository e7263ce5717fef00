/*
 * The nvidia backend of ops on factors in MXFP8, MXFP4 and NVFP4 that its kernel decodes on their
 * way to the tensor cores of Hopper GPUs (kernels/nvidia_codes.cl): products of few rows in blocks
 * along their terms, or in bf16, by weights in blocks along theirs, stored either way in a dgrad.
 * Others become bf16 first (ops/op_converted.c), and so do those of many rows: a weight is decoded
 * for every 128 rows here, once there.
 */
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "ops/backend.h"
#include "ops/nvidia.h"
#include "ops/op.h"

enum {
    STAGES = 2,
    STAGE_BYTES = 49152,
    SLOTS = 14,        /* and one less where factors lie in its place */
    SLOT_BYTES = 8192, /* the most */
    SLOT_ROWS = 128,
    SLOT_TERMS = 64,
    OUTS = 1,
    GROUP = 8,
    PLAIN = 4,            /* A_FORMAT without codes */
    TURNED_COLUMNS = 128, /* of a slot */
    SPEC_BYTES = 400,
    MOST_ROWS = 0, /* of a group on average; 0: never, until tails are verified on a GPU */
};
_Static_assert(MOERT_FORMAT_MXFP8_E4M3 == 0 && MOERT_FORMAT_MXFP8_E5M2 == 1 &&
                   MOERT_FORMAT_MXFP4 == 2 && MOERT_FORMAT_NVFP4 == 3,
               "the kernel's formats");
_Static_assert(STAGES *STAGE_BYTES + SLOTS * SLOT_BYTES + 16384 * OUTS + 256 +
                       4 * MOERT_NVIDIA_MOST_GROUPS <=
                   MOERT_ARENA_BYTES,
               "what lies in the arena");

/* The product as one of rows by weights: lines of terms by columns of terms. */
typedef struct sides {
    const moert_operand *a, *b, *result;
    const moert_op_quantized *coded_a, *coded_b; /* NULL: plain */
    moert_op_buffer which_a, which_result;
    size_t columns, terms;
} sides;

static const moert_op_quantized *find(const moert_op *op, moert_op_buffer payload) {
    for (size_t i = 0; i < op->quantized_count; i++)
        if (op->quantized[i].payload == payload)
            return &op->quantized[i];
    return NULL;
}

static sides sides_of(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const bool dgrad = o->kind == MOERT_OP_GEMM_DGRAD, glu = o->kind == MOERT_OP_GLU;
    const moert_op_buffer a = dgrad ? MOERT_OP_BUFFER_y : MOERT_OP_BUFFER_x;
    return (sides){
        .a = dgrad ? &o->y : &o->x,
        .b = &o->weight,
        .result = dgrad ? &o->x
                  : glu ? &o->d
                        : &o->y,
        .coded_a = find(op, a),
        .coded_b = find(op, MOERT_OP_BUFFER_weight),
        .which_a = a,
        .which_result = dgrad ? MOERT_OP_BUFFER_x
                        : glu ? MOERT_OP_BUFFER_d
                              : MOERT_OP_BUFFER_y,
        .columns = dgrad ? o->k : o->n,
        .terms = dgrad ? o->n : o->k,
    };
}

/* Whether codes and scales, four at a time, lie along the terms, as the kernel reads them. */
static bool lies_along(const moert_op *op, const moert_op_quantized *q, size_t terms) {
    return q->how.axis != MOERT_AXIS_COLUMN && !q->how.transposed &&
           terms % (4 * moert_format_block(q->how.format)) == 0 &&
           (q->scales != MOERT_SCALES_TILED || op->options.row_multiple <= 1);
}

/* Whether the rows of a weight are its terms. */
static bool is_turned(const moert_op *op) {
    return !find(op, MOERT_OP_BUFFER_weight)->flipped && op->options.kind == MOERT_OP_GEMM_DGRAD;
}

/* Whether the weight's codes, or pairs of them, and scales lie in lines of columns. */
static bool lies_down(const moert_op_quantized *q, size_t terms) {
    return q->how.axis == MOERT_AXIS_COLUMN && q->scales == MOERT_SCALES_LINEAR &&
           terms % SLOT_TERMS == 0;
}

static bool is_weight_taken(const moert_op *op, const moert_op_quantized *q, size_t terms) {
    const bool dgrad = op->options.kind == MOERT_OP_GEMM_DGRAD;
    if (q->flipped != dgrad)
        return dgrad && lies_down(q, terms);
    return lies_along(op, q, terms);
}

/* What of a description the kernel cannot do, beside what all of the backend cannot. */
static const char *refuse(const moert_op *op) {
    const moert_op_options *o = &op->options;
    const sides s = sides_of(op);
    const struct {
        bool taken;
        const char *what;
    } conditions[] = {
        {moert_nvidia_uses_wgmma(op->device), "GPUs of compute capability 9.0 by wgmma"},
        {o->kind != MOERT_OP_GEMM_WGRAD, "products without terms along the rows"},
        {s.coded_b != NULL, "codes of weights"},
        {o->rows <= MOST_ROWS * o->groups, "few rows of a group on average"},
        {s.result->how.size == 0, "plain results"},
        {!o->beta && !o->accumulate, "products without beta"},
        {s.coded_b == NULL || is_weight_taken(op, s.coded_b, s.terms),
         "weights in blocks along their terms, four of each row or, down the rows, in lines"},
        {s.coded_a == NULL || lies_along(op, s.coded_a, s.terms),
         "rows in blocks along their terms, four of each row"},
        {s.coded_a != NULL || s.terms % SLOT_TERMS == 0, "terms in multiples of 64"},
        {o->kind != MOERT_OP_GLU || 2 * op->run == o->n, "gates and ups in halves"},
    };
    for (size_t i = 0; i < sizeof conditions / sizeof conditions[0]; i++)
        if (!conditions[i].taken)
            return conditions[i].what;
    return NULL;
}

static void destroy(moert_op *op) {
    moert_buffer_destroy(op->state);
}

/* The workspace: alpha with the global scales. */
static moert_status create(moert_op *op) {
    bool folds = false;
    moert_buffer *factors = NULL;
    MOERT_TRY(moert_tensor_map_ready(op->device));
    for (size_t i = 0; i < op->quantized_count; i++)
        folds = folds || op->quantized[i].global != MOERT_OP_BUFFERS;
    if (folds) {
        op->workspace_bytes = op->options.groups * sizeof(float);
        MOERT_TRY(moert_buffer_create(op->device, op->workspace_bytes, &factors));
    }
    op->state = factors;
    return MOERT_OK;
}

static moert_status fold_globals(const moert_op *op, const moert_op_buffers *b) {
    moert_op_buffers given = *b;
    moert_global_scales fold = {.groups = op->options.groups, .alpha = b->alpha, .to = op->state};
    if (op->state == NULL)
        return MOERT_OK;
    for (size_t i = 0; i < op->quantized_count; i++) {
        const moert_op_quantized *q = &op->quantized[i];
        if (q->global == MOERT_OP_BUFFERS)
            continue;
        const bool second = fold.first != NULL;
        *(second ? &fold.second : &fold.first) = *moert_op_buffer_at(&given, q->global);
        *(second ? &fold.second_by_groups : &fold.first_by_groups) = q->how.group_scales;
    }
    return moert_portable_fold_globals(&fold);
}

/* A map of codes in boxes of a slot's rows, or of a plain first factor. */
static moert_status make_map(const moert_op_quantized *q, moert_buffer *buffer, size_t groups,
                             size_t rows, size_t terms, size_t stride, moert_tensor_map *map) {
    const size_t bits = q != NULL ? moert_format_element_bits(q->how.format) : 16;
    const size_t columns = q != NULL ? terms * bits / 8 : terms;
    return moert_tensor_map_make(
        buffer,
        &(moert_tensor_layout){.groups = groups,
                               .rows = rows,
                               .columns = columns,
                               .stride = q != NULL ? columns : stride,
                               .box_rows = SLOT_ROWS,
                               .box_bytes = (uint32_t)(SLOT_TERMS * bits / 8),
                               .bytes = q != NULL},
        map);
}

/* A map of a weight whose rows, or pairs of rows in whole blocks, are terms. */
static moert_status make_turned_map(const moert_op_quantized *q, moert_buffer *buffer,
                                    size_t groups, size_t columns, size_t terms,
                                    moert_tensor_map *map) {
    const size_t bits = moert_format_element_bits(q->how.format);
    return moert_tensor_map_make(
        buffer,
        &(moert_tensor_layout){.groups = groups,
                               .rows = terms * bits / 8,
                               .columns = columns,
                               .stride = columns,
                               .box_rows = (uint32_t)(SLOT_TERMS * bits / 8),
                               .box_bytes = TURNED_COLUMNS,
                               .bytes = true},
        map);
}

static void write_spec(const moert_op *op, const moert_op_buffers *b, const moert_buffer *alpha,
                       char spec[SPEC_BYTES]) {
    const moert_op_options *o = &op->options;
    const sides s = sides_of(op);
    const bool turned = is_turned(op);
    snprintf(spec, SPEC_BYTES,
             "nvidia_codes -DA_FORMAT=%d -DB_FORMAT=%d -DTURNED=%d -DA_SCALES=%d -DB_SCALES=%d "
             "-DSTAGES=%d "
             "-DSLOTS=%d -DOUTS=%d -DGROUP=%d -DARENA=%d -DRESULT=%d -DALPHA=%d -DBETA=0 "
             "-DBIAS=%d -DBIAS_TYPE=%d -DFACTOR=%d -DAMAX=%d -DGLU=%d -DRUN=0 -DSWAPPED=%d -DV=%d "
             "-DV_TYPE=%d",
             s.coded_a != NULL ? (int)s.coded_a->how.format : PLAIN, (int)s.coded_b->how.format,
             turned, s.coded_a != NULL ? (int)s.coded_a->scales : 0, (int)s.coded_b->scales, STAGES,
             SLOTS - turned, OUTS, GROUP, MOERT_ARENA_BYTES, (int)s.result->type, alpha != NULL,
             o->bias, (int)o->bias_type, o->bias_scale || o->prob, o->amax, o->kind == MOERT_OP_GLU,
             o->linear_first, b->c != NULL, (int)o->c.type);
}

static moert_status execute(moert_op *op, const moert_op_buffers *b) {
    const moert_op_options *o = &op->options;
    const sides s = sides_of(op);
    const bool glu = o->kind == MOERT_OP_GLU;
    const moert_buffer *alpha = op->state != NULL ? op->state : b->alpha;
    moert_op_buffers buffers = *b;
    moert_tensor_map map_a, map_b;
    char spec[SPEC_BYTES];
    MOERT_TRY(fold_globals(op, b));
    MOERT_TRY(make_map(s.coded_a, *moert_op_buffer_at(&buffers, s.which_a), 1, o->rows, s.terms,
                       (size_t)s.a->stride, &map_a));
    MOERT_TRY(is_turned(op)
                  ? make_turned_map(s.coded_b, b->weight, o->groups, s.columns, s.terms, &map_b)
                  : make_map(s.coded_b, b->weight, o->groups, s.columns, s.terms, 0, &map_b));
    write_spec(op, b, alpha, spec);
    const moert_buffer *scale_a =
        s.coded_a != NULL ? *moert_op_buffer_at(&buffers, s.coded_a->scale) : NULL;
    const moert_grid grid = {moert_device_describe(op->device)->compute_units, 1, 1};
    return MOERT_RUN(
        op->device, spec, "nvidia_codes", grid, moert_argument_struct(&map_a, sizeof map_a),
        moert_argument_struct(&map_b, sizeof map_b),
        MOERT_ARG(*moert_op_buffer_at(&buffers, s.which_result)),
        MOERT_ARG((size_t)s.result->stride), MOERT_ARG(b->ends), MOERT_ARG((unsigned)o->groups),
        MOERT_ARG((unsigned)o->rows), MOERT_ARG((unsigned)(glu ? s.columns / 2 : s.columns)),
        MOERT_ARG((unsigned)s.terms), MOERT_ARG(scale_a), MOERT_ARG(b->weight_scale),
        MOERT_ARG(alpha), MOERT_ARG(b->beta), MOERT_ARG(o->bias_scale ? b->bias_scale : b->prob),
        MOERT_ARG((size_t)1), MOERT_ARG(b->bias), MOERT_ARG(b->amax), MOERT_ARG(b->c),
        MOERT_ARG((size_t)o->c.stride), MOERT_ARG(o->glu.limit), MOERT_ARG(o->glu.alpha),
        MOERT_ARG(o->glu.offset));
}

const moert_op_backend moert_op_backend_nvidia_codes = {"nvidia", false,   false,  create,
                                                        destroy,  execute, refuse, NULL};

/* Launches kernels/gemm/nvidia/wgmma.cl, with tensor maps of the operands, or
 * kernels/gemm/nvidia/mma.cl. The program's options describe the epilogue. */
#include "gemm/nvidia/tensor_cores.h"

#include <stdio.h>
#include <string.h>

#include "args/gemm_nvidia.h"
#include "base/config.h"
#include "base/memory.h"
#include "base/dtype.h"
#include "device/buffer.h"
#include "device/device.h"
#include "device/launch.h"
#include "device/nvidia/tensor_map.h"
#include "device/share.h"
#include "quant/decode.h"

enum {
    PLAIN = MOERT_DECODED_FORMATS, /* A_FORMAT and B_FORMAT of an operand that is not quantized */
    SPEC_BYTES = 384,
    MOST_ARGUMENTS = 32,
};
_Static_assert(MOERT_WGMMA_ENDS_AT + 4 * MOERT_NVIDIA_MOST_GROUPS == MOERT_ARENA_BYTES,
               "the ends of the groups fill the rest of the arena");

/* For each kind of GEMM, operands A and B, and the rows of their TMA boxes in
 * kernels/gemm/nvidia/wgmma.cl. */
enum {
    BOX_LINES = MOERT_NVIDIA_LINES,
    BOX_COLUMNS = MOERT_WGMMA_COLUMNS,
    BOX_GATES = MOERT_WGMMA_COLUMNS / 2,
    BOX_TRANSPOSED = MOERT_WGMMA_K,
};
typedef enum name { X, Y, WEIGHT } name;
static const struct orientation {
    name a, b;
    uint32_t box_a, box_b;
    int number; /* ORIENTATION */
} orientations[] = {
    [MOERT_GEMM_FORWARD] = {X, WEIGHT, BOX_LINES, BOX_COLUMNS, 0},
    [MOERT_GEMM_DGRAD] = {Y, WEIGHT, BOX_LINES, BOX_TRANSPOSED, 1},
    [MOERT_GEMM_WGRAD] = {Y, X, BOX_TRANSPOSED, BOX_TRANSPOSED, 2},
};

bool moert_nvidia_uses_wgmma(const moert_device *device) {
    return moert_device_describe(device)->nvidia == 90 &&
           moert_config_get()->tensor == MOERT_TENSOR_AUTO;
}

moert_status moert_nvidia_ready(const moert_device *device) {
    return moert_nvidia_uses_wgmma(device) ? moert_tensor_map_ready(device) : MOERT_OK;
}

static moert_matrix matrix_of(const moert_gemm *gemm, name which) {
    if (which != WEIGHT)
        return which == X ? gemm->x : gemm->y;
    moert_matrix weight = gemm->weight;
    weight.stride = gemm->k;
    if (gemm->panels != NULL && gemm->kind != MOERT_GEMM_WGRAD)
        weight.buffer = gemm->panels->buffer;
    return weight;
}

moert_matrix moert_nvidia_first_operand(const moert_gemm *gemm) {
    return matrix_of(gemm, orientations[gemm->kind].a);
}

moert_matrix moert_nvidia_second_operand(const moert_gemm *gemm) {
    return matrix_of(gemm, orientations[gemm->kind].b);
}

moert_matrix moert_nvidia_result_operand(const moert_gemm *gemm) {
    static const name results[] = {
        [MOERT_GEMM_FORWARD] = Y, [MOERT_GEMM_DGRAD] = X, [MOERT_GEMM_WGRAD] = WEIGHT};
    return gemm->glu.gated ? (moert_matrix){.buffer = gemm->glu.h,
                                            .type = gemm->glu.type,
                                            .stride = gemm->glu.ldh}
                           : matrix_of(gemm, results[gemm->kind]);
}

const char *moert_nvidia_refusal(const moert_nvidia_condition *conditions, size_t count) {
    for (size_t i = 0; i < count; i++)
        if (!conditions[i].holds)
            return conditions[i].required;
    return NULL;
}

/* The tensor map of one operand: of a weight by groups, of a row matrix as a whole. */
static moert_status make_map(const moert_gemm *gemm, name which, uint32_t box_rows,
                             moert_tensor_map *map) {
    const bool weight = which == WEIGHT;
    const moert_matrix from = matrix_of(gemm, which);
    return moert_tensor_map_make(
        from.buffer,
        &(moert_tensor_layout){.groups = weight && !gemm->groups.shared ? gemm->groups.count : 1,
                               .rows = weight ? gemm->n : gemm->groups.rows,
                               .columns = which == Y ? gemm->n : gemm->k,
                               .stride = from.stride,
                               .first = from.first,
                               .run = weight && gemm->glu.gated ? gemm->glu.run : 0,
                               .box_rows = box_rows,
                               .f16 = moert_gemm_type(gemm) == MOERT_DTYPE_F16},
        map);
}

static bool adds(const moert_gemm *gemm) {
    return gemm->epilogue.addend != MOERT_ADDEND_NONE;
}

/* FACTOR of kernels/gemm/nvidia/epilogue.h: a scale per row. */
static const moert_buffer *row_scale(const moert_gemm *gemm) {
    const moert_gemm_more *e = gemm->more;
    return gemm->glu.gated ? gemm->glu.prob : e->bias_scale != NULL ? e->bias_scale : e->prob;
}

/* Whether v of a GLU is kept. If v is kept, the kernel gets v's stride and type even if v has no
 * buffer yet. */
static bool keeps_v(const moert_gemm *gemm) {
    return gemm->glu.gated && !gemm->glu.drop_v;
}

/* Only forward has a bias. */
static const moert_buffer *bias_of(const moert_gemm *gemm) {
    return gemm->kind == MOERT_GEMM_FORWARD ? gemm->bias : NULL;
}

/* The tensor map of the old result, as 16-bit words. */
static moert_status make_old_map(const moert_gemm *gemm, const moert_matrix *result,
                                 moert_tensor_map *map) {
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    const size_t words = moert_dtype_bits(result->type) / 16;
    return moert_tensor_map_make(
        result->buffer,
        &(moert_tensor_layout){.groups = 1,
                               .rows = wgrad ? gemm->groups.count * gemm->n : gemm->groups.rows,
                               .columns =
                                   (gemm->kind == MOERT_GEMM_FORWARD ? gemm->n : gemm->k) * words,
                               .stride = result->stride * words,
                               .first = result->first * words,
                               .box_rows = BOX_LINES},
        map);
}

static int format_of(const moert_matrix *o) {
    return o->quantized != NULL ? (int)o->quantized->format : PLAIN;
}

static void write_spec(const moert_gemm *gemm, bool wgmma, bool counted, char spec[SPEC_BYTES]) {
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    const moert_gemm_more *e = gemm->more;
    const moert_glu *glu = &gemm->glu;
    const int run = gemm->glu.gated && 2 * glu->run != gemm->n ? (int)glu->run : 0;
    const int used = wgmma ? snprintf(spec, SPEC_BYTES,
                                      "gemm/nvidia/wgmma -DARENA=%d -DA_FORMAT=%d -DB_FORMAT=%d "
                                      "-DCOUNTED=%d -DSCATTER=%zu",
                                      MOERT_ARENA_BYTES, format_of(&a), format_of(&b), counted,
                                      gemm->groups.runs)
                           : snprintf(spec, SPEC_BYTES, "gemm/nvidia/mma");
    snprintf(spec + used, SPEC_BYTES - (size_t)used,
             " -DORIENTATION=%d -DF16=%d -DRESULT=%d -DALPHA=%d -DBETA=%d -DBIAS=%d -DBIAS_TYPE=%d "
             "-DROW_SCALE=%d -DAMAX=%d -DGLU=%d -DRUN=%d -DSWAPPED=%d -DV=%d -DV_TYPE=%d",
             orientations[gemm->kind].number, moert_gemm_type(gemm) == MOERT_DTYPE_F16,
             (int)moert_nvidia_result_operand(gemm).type, gemm->epilogue.alpha != NULL,
             adds(gemm)        ? 1
             : e->beta != NULL ? 2
                               : 0,
             bias_of(gemm) != NULL, (int)e->bias_type, row_scale(gemm) != NULL, e->amax != NULL,
             gemm->glu.gated, run, glu->linear_first, keeps_v(gemm) && gemm->y.buffer != NULL,
             (int)(keeps_v(gemm) ? gemm->y.type : MOERT_DTYPE_F32));
}

/* A kernel's arguments, in order. */
typedef struct call {
    moert_argument arguments[MOST_ARGUMENTS];
    size_t count;
} call;

#define ADD(call, ...)                                                                             \
    add_arguments(call, (const moert_argument[]){__VA_ARGS__},                                     \
                  sizeof((const moert_argument[]){__VA_ARGS__}) / sizeof(moert_argument))

static void add_arguments(call *to, const moert_argument *arguments, size_t count) {
    memcpy(to->arguments + to->count, arguments, count * sizeof *arguments);
    to->count += count;
}

/* Completes `args` and adds the arguments after the operands. `args` must live until the launch. */
static void add_rest(const moert_gemm *gemm, moert_nvidia_gemm_args *args, call *to) {
    const moert_gemm_more *e = gemm->more;
    const moert_glu *glu = &gemm->glu;
    const moert_matrix result = moert_nvidia_result_operand(gemm);
    const bool forward = gemm->kind == MOERT_GEMM_FORWARD;
    const unsigned groups = (unsigned)gemm->groups.count, used = gemm->groups.shared ? 1 : groups;
    const unsigned end =
        gemm->groups.end > 0 && !gemm->groups.shared ? (unsigned)gemm->groups.end : used;
    const moert_buffer *v = keeps_v(gemm) ? gemm->y.buffer : NULL;
    const moert_buffer *beta_or_v = glu->gated ? v : e->beta;
    const moert_buffer *lines = gemm->groups.runs > 0 ? gemm->more->places : result.buffer;
    args->ldc = result.stride;
    args->first_column = result.first;
    args->row_scale_stride = glu->prob_stride;
    args->ldv = keeps_v(gemm) ? gemm->y.stride : 0;
    args->first_end = groups - used;
    args->skip = (uint32_t)gemm->groups.first;
    args->groups = end;
    args->lines = (uint32_t)gemm->n;
    args->columns = (uint32_t)(gemm->glu.gated ? gemm->n / 2 : forward ? gemm->n : gemm->k);
    args->terms = (uint32_t)(forward ? gemm->k : gemm->n);
    args->limit = glu->form.limit;
    args->slope = glu->form.alpha;
    args->offset = glu->form.offset;
    args->activation = glu->form.activation;
    ADD(to, MOERT_ARG(lines), MOERT_ARG(gemm->groups.ends), MOERT_ARG(gemm->epilogue.alpha),
        MOERT_ARG(beta_or_v), MOERT_ARG(row_scale(gemm)), MOERT_ARG(bias_of(gemm)),
        MOERT_ARG(e->amax), MOERT_STRUCT(*args));
}

/* *at = the addresses of an operand's payload, scales and bf16 buffer, if the operand is
 * quantized. */
static moert_status locate(const moert_matrix *operand, moert_nvidia_quantized *at) {
    const moert_quantized *from = operand->quantized;
    if (from == NULL)
        return MOERT_OK;
    MOERT_TRY(moert_buffer_address((moert_buffer *)from->q, &at->payload));
    MOERT_TRY(moert_buffer_address((moert_buffer *)from->scale, &at->scales));
    return moert_buffer_address(operand->buffer, &at->bf16);
}

static moert_status run_wgmma(const moert_gemm *gemm, unsigned units, moert_buffer *counts) {
    const struct orientation *how = &orientations[gemm->kind];
    const moert_matrix result = moert_nvidia_result_operand(gemm);
    moert_device *device = moert_buffer_device(result.buffer);
    char spec[SPEC_BYTES];
    moert_tensor_map maps[3] = {{{0}}}; /* the tensor maps of operands a and b, and of the old
                                           result */
    moert_nvidia_gemm_args args = {0};
    call to = {.count = 0};
    MOERT_TRY(make_map(gemm, how->a, how->box_a, &maps[0]));
    MOERT_TRY(make_map(gemm, how->b, gemm->glu.gated ? BOX_GATES : how->box_b, &maps[1]));
    if (adds(gemm) || gemm->more->beta != NULL)
        MOERT_TRY(make_old_map(gemm, &result, &maps[2]));
    ADD(&to, MOERT_STRUCT(maps));
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    MOERT_TRY(locate(&a, &args.a));
    MOERT_TRY(locate(&b, &args.b));
    add_rest(gemm, &args, &to);
    ADD(&to, MOERT_ARG(counts));
    if (moert_nvidia_is_quantized(gemm))
        MOERT_TRY(moert_buffer_clear(counts, 0, gemm->groups.count * sizeof(uint32_t)));
    write_spec(gemm, true, !moert_nvidia_is_quantized(gemm) && counts != NULL, spec);
    return moert_launch(device, spec, "nvidia_gemm", (moert_grid){units, 1, 1}, to.arguments,
                        to.count);
}

/* A GEMM with what it points to, which may be gone when spared units help with it. */
typedef struct whole_gemm {
    moert_gemm gemm;
    moert_gemm_more more;
} whole_gemm;

static moert_status run_part(const void *work, unsigned units, moert_buffer *counts) {
    const whole_gemm *whole = work;
    moert_gemm gemm = whole->gemm;
    gemm.more = &whole->more;
    return run_wgmma(&gemm, units, counts);
}

static moert_status run_mma(const moert_gemm *gemm) {
    const moert_matrix a = moert_nvidia_first_operand(gemm), b = moert_nvidia_second_operand(gemm);
    const bool wgrad = gemm->kind == MOERT_GEMM_WGRAD;
    const moert_row_groups part = moert_groups_filled(gemm->groups);
    const size_t used = gemm->groups.shared ? 1 : part.end - part.first;
    const size_t down =
        wgrad ? used * moert_ceil_div(gemm->n, MOERT_NVIDIA_LINES)
              : (part.end_row - part.first_row) / MOERT_NVIDIA_LINES + (part.first > 0) + used;
    const size_t across =
        moert_ceil_div(gemm->kind == MOERT_GEMM_FORWARD ? gemm->n : gemm->k, MOERT_MMA_COLUMNS);
    char spec[SPEC_BYTES];
    moert_nvidia_gemm_args args = {.first_a = a.first,
                                   .lda = a.stride,
                                   .first_b = b.first,
                                   .ldb = b.stride,
                                   .ldg = wgrad ? 0 : gemm->n * gemm->k,
                                   .down = (uint32_t)down};
    call to = {.count = 0};
    write_spec(gemm, false, false, spec);
    ADD(&to, MOERT_ARG(a.buffer), MOERT_ARG(b.buffer));
    add_rest(gemm, &args, &to);
    return moert_launch(moert_buffer_device(moert_nvidia_result_operand(gemm).buffer), spec,
                        "nvidia_mma", (moert_grid){down * across, 1, 1}, to.arguments, to.count);
}

moert_status moert_nvidia_run(const moert_gemm *gemm, moert_buffer *counts) {
    moert_device *device = moert_buffer_device(moert_nvidia_result_operand(gemm).buffer);
    if (!moert_nvidia_uses_wgmma(device))
        return run_mma(gemm);
    if (gemm->kind == MOERT_GEMM_WGRAD && !moert_nvidia_is_quantized(gemm)) {
        const whole_gemm whole = {*gemm, *gemm->more};
        return moert_device_share(device, run_part, &whole, sizeof whole);
    }
    return run_wgmma(gemm, moert_device_units(device), counts);
}

/* Launches kernels/gemm/nvidia/wgmma.cl, with tensor maps of the factors, or
 * kernels/gemm/nvidia/mma.cl, and the program with what follows the product. */
#include "gemm/nvidia/tensor_cores.h"

#include <stdio.h>
#include <string.h>

#include "base/config.h"
#include "base/memory.h"
#include "base/number.h"
#include "device/device.h"

enum {
    STAGES = 4,
    OUTS = 2,
    GROUP = 16, /* tiles of kernels/gemm/nvidia/wgmma.cl */
    PLAIN = 4,  /* format of a factor without codes */
    GROUP_MMA = 16,
    TILE_MMA = 128,
    STAGE_BYTES = 49152,
    OUT_BYTES = 16384,
    TABLE_BYTES = 256,
    SPEC_BYTES = 384,
    MOST_ARGUMENTS = 32,
};
_Static_assert(MOERT_NVIDIA_MOST_GROUPS * 4 ==
                   MOERT_ARENA_BYTES - STAGES * STAGE_BYTES - OUTS * OUT_BYTES - TABLE_BYTES,
               "the ends of the groups fill what is left of the arena");

/* The factors of each kind and the rows of their boxes in kernels/gemm/nvidia/wgmma.cl. */
enum { BOX_LINES = 128, BOX_COLUMNS = 256, BOX_GATES = 128, BOX_TURNED = 64, BOX_OLD = 128 };
typedef enum factor { FACTOR_X, FACTOR_Y, FACTOR_WEIGHT } factor;
static const struct orientation {
    factor a, b;
    uint32_t box_a, box_b;
    int number; /* ORIENTATION */
} orientations[] = {
    [MOERT_OP_GEMM_FORWARD] = {FACTOR_X, FACTOR_WEIGHT, BOX_LINES, BOX_COLUMNS, 0},
    [MOERT_OP_GEMM_DGRAD] = {FACTOR_Y, FACTOR_WEIGHT, BOX_LINES, BOX_TURNED, 1},
    [MOERT_OP_GEMM_WGRAD] = {FACTOR_Y, FACTOR_X, BOX_TURNED, BOX_TURNED, 2},
    [MOERT_OP_GLU] = {FACTOR_X, FACTOR_WEIGHT, BOX_LINES, BOX_GATES, 0},
};

static moert_number factor_type(const moert_nvidia_product *p) {
    return p->kind == MOERT_OP_GEMM_DGRAD ? p->y.type : p->x.type;
}

bool moert_nvidia_uses_wgmma(const moert_device *device) {
    return moert_device_describe(device)->nvidia == 90 &&
           moert_config_get()->tensor == MOERT_TENSOR_AUTO;
}

moert_status moert_nvidia_ready(const moert_device *device) {
    return moert_nvidia_uses_wgmma(device) ? moert_tensor_map_ready(device) : MOERT_OK;
}

static moert_buffer *buffer_of(const moert_nvidia_product *p, factor which) {
    return which == FACTOR_X ? p->x.buffer : which == FACTOR_Y ? p->y.buffer : p->weight;
}

/* The map of one factor: the weight in its groups, row matrices as one. */
static moert_status make_map(const moert_nvidia_product *p, factor which, uint32_t box_rows,
                             moert_tensor_map *map) {
    const bool f16 = factor_type(p) == MOERT_NUMBER_F16;
    const moert_nvidia_rows *rows = which == FACTOR_X ? &p->x : &p->y;
    if (which != FACTOR_WEIGHT)
        return moert_tensor_map_make(
            rows->buffer,
            &(moert_tensor_layout){.groups = 1,
                                   .rows = p->groups.rows,
                                   .columns = which == FACTOR_X ? p->k : p->n,
                                   .stride = rows->stride,
                                   .first = rows->first,
                                   .box_rows = box_rows,
                                   .f16 = f16},
            map);
    return moert_tensor_map_make(p->weight,
                                 &(moert_tensor_layout){.groups = p->shared ? 1 : p->groups.count,
                                                        .rows = p->n,
                                                        .columns = p->k,
                                                        .stride = p->k,
                                                        .run = p->kind == MOERT_OP_GLU ? p->run : 0,
                                                        .box_rows = box_rows,
                                                        .f16 = f16},
                                 map);
}

/* Where the result goes: a weight's gradient as rows of K numbers. */
static moert_nvidia_rows result_of(const moert_nvidia_product *p) {
    if (p->kind == MOERT_OP_GEMM_WGRAD)
        return (moert_nvidia_rows){p->weight, p->k, 0, p->weight_type};
    return p->kind == MOERT_OP_GEMM_DGRAD ? p->x : p->y;
}

/* The map of the old values, as numbers of 16 bits. */
static moert_status make_old_map(const moert_nvidia_product *p, const moert_nvidia_rows *result,
                                 moert_tensor_map *map) {
    const bool wgrad = p->kind == MOERT_OP_GEMM_WGRAD;
    const size_t words = moert_number_bits(result->type) / 16;
    return moert_tensor_map_make(
        result->buffer,
        &(moert_tensor_layout){.groups = 1,
                               .rows = wgrad ? p->groups.count * p->n : p->groups.rows,
                               .columns = (p->kind == MOERT_OP_GEMM_FORWARD ? p->n : p->k) * words,
                               .stride = result->stride * words,
                               .first = result->first * words,
                               .box_rows = BOX_OLD},
        map);
}

static int format_of(const moert_nvidia_product *p, size_t i) {
    return p->coded != NULL && p->coded[i].q != NULL ? (int)p->coded[i].format : PLAIN;
}

static void write_spec(const moert_nvidia_product *p, bool wgmma, char spec[SPEC_BYTES]) {
    const bool glu = p->kind == MOERT_OP_GLU;
    const int run = glu && 2 * p->run != p->n ? (int)p->run : 0;
    const int used = wgmma
                         ? snprintf(spec, SPEC_BYTES,
                                    "gemm/nvidia/wgmma -DSTAGES=%d -DOUTS=%d -DGROUP=%d -DARENA=%d "
                                    "-DA_FORMAT=%d -DB_FORMAT=%d -DCOUNTED=%d -DSCATTER=%zu",
                                    STAGES, OUTS, GROUP, MOERT_ARENA_BYTES, format_of(p, 0),
                                    format_of(p, 1), p->coded == NULL && p->counts != NULL,
                                    p->scatter.places != NULL ? p->scatter.runs : 0)
                         : snprintf(spec, SPEC_BYTES, "gemm/nvidia/mma -DGROUP=%d", GROUP_MMA);
    snprintf(spec + used, SPEC_BYTES - (size_t)used,
             " -DORIENTATION=%d -DF16=%d -DRESULT=%d -DALPHA=%d -DBETA=%d -DBIAS=%d -DBIAS_TYPE=%d "
             "-DFACTOR=%d -DAMAX=%d -DGLU=%d -DRUN=%d -DSWAPPED=%d -DV=%d -DV_TYPE=%d",
             orientations[p->kind].number, factor_type(p) == MOERT_NUMBER_F16,
             (int)result_of(p).type, p->alpha != NULL,
             p->accumulate     ? 1
             : p->beta != NULL ? 2
                               : 0,
             p->bias != NULL, (int)p->bias_type, p->factor != NULL, p->amax != NULL, glu, run,
             p->linear_first, p->v.buffer != NULL, (int)p->v.type);
}

/* A kernel's arguments, in its order. */
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

/* What follows the factors. */
static void add_rest(const moert_nvidia_product *p, call *to) {
    const moert_nvidia_rows result = result_of(p);
    const bool forward = orientations[p->kind].number == 0, glu = p->kind == MOERT_OP_GLU;
    const unsigned groups = (unsigned)p->groups.count, used = p->shared ? 1 : groups;
    const unsigned end = p->part.end > 0 && !p->shared ? (unsigned)p->part.end : used;
    const moert_buffer *lines = p->scatter.places != NULL ? p->scatter.places : result.buffer;
    ADD(to, MOERT_ARG(lines), MOERT_ARG(result.stride), MOERT_ARG(result.first),
        MOERT_ARG(p->groups.ends), MOERT_ARG(groups - used), MOERT_ARG((unsigned)p->part.first),
        MOERT_ARG(end), MOERT_ARG((unsigned)p->n),
        MOERT_ARG((unsigned)(glu       ? p->n / 2
                             : forward ? p->n
                                       : p->k)),
        MOERT_ARG((unsigned)(forward ? p->k : p->n)), MOERT_ARG(p->alpha), MOERT_ARG(p->beta),
        MOERT_ARG(p->factor), MOERT_ARG(p->factor_stride), MOERT_ARG(p->bias), MOERT_ARG(p->amax),
        MOERT_ARG(p->v.buffer), MOERT_ARG(p->v.stride), MOERT_ARG(p->glu.limit),
        MOERT_ARG(p->glu.alpha), MOERT_ARG(p->glu.offset));
}

/* The codes of both factors, each before the buffer of its numbers. */
static void add_codes(const moert_nvidia_product *p, call *to) {
    static const moert_coded none[2];
    const struct orientation *how = &orientations[p->kind];
    const moert_coded *coded = p->coded != NULL ? p->coded : none;
    ADD(to, MOERT_ARG(coded[0].q), MOERT_ARG(coded[0].scale), MOERT_ARG(buffer_of(p, how->a)),
        MOERT_ARG(coded[1].q), MOERT_ARG(coded[1].scale), MOERT_ARG(buffer_of(p, how->b)),
        MOERT_ARG(p->counts));
}

static moert_status run_wgmma(const moert_nvidia_product *p, unsigned units) {
    const struct orientation *how = &orientations[p->kind];
    const moert_nvidia_rows result = result_of(p);
    moert_device *device = moert_buffer_device(result.buffer);
    char spec[SPEC_BYTES];
    moert_tensor_map map_a, map_b, old = {{0}};
    call to = {.count = 0};
    MOERT_TRY(make_map(p, how->a, how->box_a, &map_a));
    MOERT_TRY(make_map(p, how->b, how->box_b, &map_b));
    if (p->accumulate || p->beta != NULL)
        MOERT_TRY(make_old_map(p, &result, &old));
    ADD(&to, moert_argument_struct(&map_a, sizeof map_a),
        moert_argument_struct(&map_b, sizeof map_b), moert_argument_struct(&old, sizeof old));
    add_rest(p, &to);
    add_codes(p, &to);
    if (p->coded != NULL)
        MOERT_TRY(moert_buffer_clear(p->counts, 0, p->groups.count * sizeof(uint32_t)));
    write_spec(p, true, spec);
    return moert_launch(device, spec, "nvidia_gemm", (moert_grid){units, 1, 1}, to.arguments,
                        to.count);
}

static moert_status run_part(const void *product, unsigned units, moert_buffer *counts) {
    moert_nvidia_product p = *(const moert_nvidia_product *)product;
    p.counts = counts;
    return run_wgmma(&p, units);
}

/* The weight as rows of K numbers. */
static moert_nvidia_rows factor_of(const moert_nvidia_product *p, factor which) {
    return which == FACTOR_X   ? p->x
           : which == FACTOR_Y ? p->y
                               : (moert_nvidia_rows){p->weight, p->k, 0, factor_type(p)};
}

static moert_status run_mma(const moert_nvidia_product *p) {
    const struct orientation *how = &orientations[p->kind];
    const moert_nvidia_rows a = factor_of(p, how->a), b = factor_of(p, how->b);
    const bool wgrad = p->kind == MOERT_OP_GEMM_WGRAD;
    const size_t used = p->shared ? 1 : p->groups.count;
    const size_t rows = p->part.end > 0 ? p->part.end_row - p->part.first_row : p->groups.rows;
    const size_t down = wgrad ? used * moert_ceil_div(p->n, TILE_MMA)
                              : rows / TILE_MMA + (p->part.first > 0) + used;
    const size_t across = moert_ceil_div(how->number == 0 ? p->n : p->k, TILE_MMA);
    char spec[SPEC_BYTES];
    call to = {.count = 0};
    write_spec(p, false, spec);
    ADD(&to, MOERT_ARG(a.buffer), MOERT_ARG(a.first), MOERT_ARG(a.stride), MOERT_ARG(b.buffer),
        MOERT_ARG(b.first), MOERT_ARG(b.stride), MOERT_ARG(wgrad ? (size_t)0 : p->n * p->k),
        MOERT_ARG((unsigned)down));
    add_rest(p, &to);
    return moert_launch(moert_buffer_device(result_of(p).buffer), spec, "nvidia_mma",
                        (moert_grid){down * across, 1, 1}, to.arguments, to.count);
}

moert_status moert_nvidia_run(const moert_nvidia_product *p) {
    moert_device *device = moert_buffer_device(result_of(p).buffer);
    if (!moert_nvidia_uses_wgmma(device))
        return run_mma(p);
    if (p->kind == MOERT_OP_GEMM_WGRAD && p->coded == NULL)
        return moert_device_share(device, run_part, p, sizeof *p);
    return run_wgmma(p, moert_device_units(device));
}

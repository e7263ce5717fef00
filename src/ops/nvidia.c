/* Launches kernels/nvidia_gemm.cl: tensor maps of the factors, and the program with what follows
 * the product. */
#include "ops/nvidia.h"

#include <stdio.h>

#include "device/device.h"

enum {
    STAGES = 4,
    OUTS = 2,
    GROUP = 8,
    STAGE_BYTES = 49152,
    OUT_BYTES = 16384,
    TABLE_BYTES = 256,
    SPEC_BYTES = 320,
};
_Static_assert(MOERT_NVIDIA_MOST_GROUPS * 4 ==
                   MOERT_ARENA_BYTES - STAGES * STAGE_BYTES - OUTS * OUT_BYTES - TABLE_BYTES,
               "the ends of the groups fill what is left of the arena");

/* The factors of each kind and the rows of their boxes in kernels/nvidia_gemm.cl. */
enum { BOX_LINES = 128, BOX_COLUMNS = 256, BOX_GATES = 128, BOX_TURNED = 64 };
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

static void write_spec(const moert_nvidia_product *p, char spec[SPEC_BYTES]) {
    const bool glu = p->kind == MOERT_OP_GLU;
    const int run = glu && 2 * p->run != p->n ? (int)p->run : 0;
    snprintf(spec, SPEC_BYTES,
             "nvidia_gemm -DORIENTATION=%d -DF16=%d -DSTAGES=%d -DOUTS=%d -DGROUP=%d -DARENA=%d "
             "-DRESULT=%d -DALPHA=%d -DBETA=%d -DBIAS=%d -DBIAS_TYPE=%d -DFACTOR=%d -DAMAX=%d "
             "-DGLU=%d -DRUN=%d -DSWAPPED=%d -DV=%d -DV_TYPE=%d",
             orientations[p->kind].number, factor_type(p) == MOERT_NUMBER_F16, STAGES, OUTS, GROUP,
             MOERT_ARENA_BYTES, (int)result_of(p).type, p->alpha != NULL,
             p->accumulate     ? 1
             : p->beta != NULL ? 2
                               : 0,
             p->bias != NULL, (int)p->bias_type, p->factor != NULL, p->amax != NULL, glu, run,
             p->linear_first, p->v.buffer != NULL, (int)p->v.type);
}

moert_status moert_nvidia_run(const moert_nvidia_product *p) {
    const struct orientation *how = &orientations[p->kind];
    const moert_nvidia_rows result = result_of(p);
    moert_device *device = moert_buffer_device(result.buffer);
    const bool forward = how->number == 0, glu = p->kind == MOERT_OP_GLU;
    const unsigned groups = (unsigned)p->groups.count, used = p->shared ? 1 : groups;
    moert_tensor_map map_a, map_b;
    char spec[SPEC_BYTES];
    MOERT_TRY(make_map(p, how->a, how->box_a, &map_a));
    MOERT_TRY(make_map(p, how->b, how->box_b, &map_b));
    write_spec(p, spec);
    const moert_grid grid = {moert_device_describe(device)->compute_units, 1, 1};
    return MOERT_RUN(device, spec, "nvidia_gemm", grid, moert_argument_struct(&map_a, sizeof map_a),
                     moert_argument_struct(&map_b, sizeof map_b), MOERT_ARG(result.buffer),
                     MOERT_ARG(result.stride), MOERT_ARG(result.first), MOERT_ARG(p->groups.ends),
                     MOERT_ARG(groups - used), MOERT_ARG(used), MOERT_ARG((unsigned)p->n),
                     MOERT_ARG((unsigned)(glu       ? p->n / 2
                                          : forward ? p->n
                                                    : p->k)),
                     MOERT_ARG((unsigned)(forward ? p->k : p->n)), MOERT_ARG(p->alpha),
                     MOERT_ARG(p->beta), MOERT_ARG(p->factor), MOERT_ARG(p->factor_stride),
                     MOERT_ARG(p->bias), MOERT_ARG(p->amax), MOERT_ARG(p->v.buffer),
                     MOERT_ARG(p->v.stride), MOERT_ARG(p->glu.limit), MOERT_ARG(p->glu.alpha),
                     MOERT_ARG(p->glu.offset));
}

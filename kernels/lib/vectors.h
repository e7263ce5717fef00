/*
 * Included by common.h: the vector in which a work-item computes, the steps of a row, and this
 * work-item's place in its row group.
 */
#include "args/forms.h"

/* Selects a value by the form. */
#define BY_FORM(cpu, gpu) (MOERT_ITEMS == 1 ? (cpu) : (gpu))

/* BATCH: the number of steps whose loads are in flight together, in loops that hide memory
 * latency. */
#if MOERT_ITEMS == 1
#define PART  MOERT_CPU_VECTOR
#define BATCH 1
typedef float16 vec;
typedef int16 ivec;
typedef uint16 uvec;
typedef uchar16 byte_vec;
typedef ushort16 short_vec;
#define as_vec            as_float16
#define as_uvec           as_uint16
#define as_ivec           as_int16
#define convert_vec       convert_float16
#define convert_uvec      convert_uint16
#define convert_ivec      convert_int16
#define convert_byte_vec  convert_uchar16
#define convert_short_vec convert_ushort16
#define vload_part        vload16
#define vstore_part       vstore16
#define LANES_IN_ORDER    (ivec)(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15)
#else
#define PART              MOERT_GPU_VECTOR
#define BATCH             4
typedef float4 vec;
typedef int4 ivec;
typedef uint4 uvec;
typedef uchar4 byte_vec;
typedef ushort4 short_vec;
#define as_vec            as_float4
#define as_uvec           as_uint4
#define as_ivec           as_int4
#define convert_vec       convert_float4
#define convert_uvec      convert_uint4
#define convert_ivec      convert_int4
#define convert_byte_vec  convert_uchar4
#define convert_short_vec convert_ushort4
#define vload_part        vload4
#define vstore_part       vstore4
#define LANES_IN_ORDER    (ivec)(0, 1, 2, 3)
#endif
#define VEC (MOERT_ITEMS * PART)

/* The lanes of a sum over a row: eight vectors of one work-item on CPUs, or one vector of each of
 * 32 work-items on GPUs. */
#define SUM_LANES MOERT_SUM_LANES
#define SUM_VECS  (SUM_LANES / VEC)
typedef struct lane_sums {
    vec part[SUM_VECS];
} lane_sums;
#define NO_SUM                                                                                     \
    {                                                                                              \
        { 0.0f }                                                                                   \
    }
/* Precedes a statement: runs it for each step of the first `width` columns of a row. The step
 * begins at column c, and its sum belongs to part v of a lane_sums. */
#define EACH_STEP_OF(c, v, width)                                                                  \
    for (int c = 0, v = 0; c < (int)(width); c += VEC, v = (v + 1) % SUM_VECS)

static inline int item_index(void) {
    return MOERT_ITEMS > 1 ? (int)get_local_id(0) : 0;
}

static inline bool is_first_item(void) {
    return item_index() == 0;
}

/* The index in a step at which this work-item's part begins. */
static inline int part_start(void) {
    return item_index() * PART;
}

/* The index of this work-item's row group in its work-group. */
static inline int row_group_index(void) {
    return MOERT_ITEMS > 1 ? (int)get_local_id(1) : 0;
}

/* The places, within a step, of the elements that the lanes of this work-item hold. */
static inline ivec lane_places(void) {
    return part_start() + LANES_IN_ORDER;
}

/* The first n lanes of a step; the others become zero. */
static inline vec first_lanes(vec x, int n) {
    return lane_places() < n ? x : 0.0f;
}

/* Declares `row_group`, the local memory through which the items of a row group exchange
 * values. With several row groups, `row_group` is an array with one entry for each, so that they
 * can exchange values at the same time. */
#define ROW_GROUP                local float row_group[MOERT_ITEMS]
#define ROW_GROUP_OF(row_groups) local float row_group[row_groups][MOERT_ITEMS]

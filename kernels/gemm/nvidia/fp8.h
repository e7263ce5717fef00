/*
 * The producers of fp8.cl: they walk over the tiles and fill a ring of stages in local memory with
 * blocks of both operands, their scales, and descriptions of tiles, for the consumers.
 *
 *     stage of the ring    LINES x 128 bytes of a, COLUMNS x 128 bytes of b, both swizzled; SCALES
 *                          floats; a tile
 *     barrier FULL         one arrival for the operands, which also counts their bytes, and 3 for
 *                          the scales
 *     barrier EMPTY        one arrival of each of the consumers' 8 warps
 */
#define LINES       MOERT_NVIDIA_LINES
#define COLUMNS     MOERT_FP8_COLUMNS
#define RESULTS     COLUMNS
#define BLOCK_K     MOERT_FP8_K
#define STAGES      MOERT_FP8_STAGES
#define STAGE_BYTES MOERT_FP8_STAGE_BYTES
#define OUTS        MOERT_FP8_OUTS
#define GROUP       MOERT_FP8_GROUP
#define WIDTH       128 /* columns of a part */
#define PARTS       (COLUMNS / WIDTH)
#define PART_SUMS   (WIDTH / 2) /* of a work-item */
#define STEP        32          /* K values of a wgmma */
#define A_BYTES     (LINES * BLOCK_K)
/* ORDER and ORDER + 1: the barriers at which a consumer waits until it may use the tensor cores;
 * clear_k uses barrier 3 */
#define ORDER         4
#define BLOCK         MOERT_FP8_K /* columns that share a scale, except in WGRAD */
#define COLUMN_SCALES (WGRAD ? COLUMNS : COLUMNS / BLOCK) /* scales of a block of B */
#define SCALES        (LINES + (WGRAD ? COLUMNS : 4))
#define SCALES_OWN    ((LINES + COLUMN_SCALES + 95) / 96) /* scales that a work-item loads */

#define REDUCES_ROWS WGRAD
#define KEEPS_EMPTY  0

/* Offsets in the arena. */
#define OUT_AT     (STAGES * STAGE_BYTES)
#define FULL_AT    MOERT_FP8_BARRIERS_AT
#define EMPTY_AT   (FULL_AT + 8 * STAGES)
#define TILES_AT   (FULL_AT + 128)
#define TILE_BYTES 32
#define SCALES_AT  (TILES_AT + TILE_BYTES * STAGES)
#define ENDS_AT    MOERT_FP8_ENDS_AT(SCALES)

/* The description of a tile for the consumers; group -1: no more tiles. */
typedef struct tile {
    int group, line, end,
        column; /* first line and column, and the end of the group's lines, in the result */
    uint k_size;
} tile;

typedef struct shape {
    uint groups, lines, columns, k_size; /* lines of all groups; in WGRAD of each group */
} shape;

#include "lib/pipeline.h"
#include "gemm/nvidia/tiles.h"
#include "gemm/nvidia/walk.h"

/* Scales; fp8.cl defines the strides. */
typedef struct scales {
    global const float *s, *t;
    uint blocks, s_line, s_block, t_group, t_block, t_column;
} scales;

/* The position of a block of K: in the tile that begins at (line, column) of the walk's group. */
typedef struct position {
    uint line, column, block;
} position;

/* The first work-item starts the loads of both operands of a block. */
static inline void load_operands(const walk *w, position at, ulong map_a, ulong map_b, uint stage,
                                 uint full) {
    const uint k =
        (WGRAD ? w->first & ~15u : 0) + at.block * BLOCK_K; /* TMA needs multiples of 16 */
    expect(full, STAGE_BYTES);
    load_box(stage, map_a, k, WGRAD ? at.line : w->first + at.line, 0, full);
    load_box(stage + LINES * BLOCK_K, map_b, k, at.column, WGRAD ? 0 : w->group, full);
}

/* Scale j of a block: first the scales of its lines, then those of its columns. A j beyond the end
 * gives the last scale. */
static inline float load_scale(const shape *s, const scales *of, const walk *w, position at,
                               uint j) {
    const uint block = WGRAD ? min(w->block + at.block, of->blocks - 1) : at.block,
               unit = WGRAD ? 1 : BLOCK;
    if (j < LINES)
        return of->s[min((WGRAD ? at.line : w->first + at.line) + j, s->lines - 1) * of->s_line +
                     block * of->s_block];
    return of->t[w->group * of->t_group + block * of->t_block +
                 min(at.column / unit + j - LINES, (s->columns - 1) / unit) * of->t_column];
}

/*
 * Loads the blocks of all tiles of this work-group, in order, as stages become free. Work-item 0
 * starts the loads of the operands and describes the tile. Warps 1 to 3 load the scales into
 * registers before they wait for the stage.
 */
static inline void produce(shape s, const scales *of, ulong map_a, ulong map_b, uint base,
                           local uchar *arena) {
    const bool loads_scales = get_local_id(0) >= 32;
    local const uint *ends = (local const uint *)(arena + ENDS_AT);
    walk w = {0, 0, 0, 0, 0};
    uint step = 0;
    for (uint n = get_group_id(0);; n += get_num_groups(0)) {
        const bool more = find_group(&s, ends, n, &w);
        const tile_position tile_at =
            tile_position_of(n - w.base, GROUP, tiles_down(&s, &w), tiles_across(&s));
        position at = {tile_at.down * LINES, tile_at.across * COLUMNS, 0};
        const uint k_size = WGRAD ? w.last - w.first : s.k_size,
                   blocks = more ? blocks_of(k_size) : 0;
        for (; at.block < max(blocks, 1u); at.block++, step++) {
            const uint stage = step % STAGES;
            float own[SCALES_OWN];
            if (SCALED && loads_scales && blocks > 0)
                UNROLL_FOR(uint i = 0; i < SCALES_OWN; i++)
                    own[i] = load_scale(&s, of, &w, at, get_local_id(0) - 32 + 96 * i);
            const uint full = claim_stage(base, step);
            if (SCALED && loads_scales) {
                local float *to =
                    (local float *)(arena + SCALES_AT) + stage * SCALES + get_local_id(0) - 32;
                UNROLL_FOR(uint i = 0; i < SCALES_OWN; i++)
                    if (blocks > 0 && get_local_id(0) - 32 + 96 * i < LINES + COLUMN_SCALES)
                        to[96 * i] = own[i];
                sync_warp();
                if (get_local_id(0) % 32 == 0)
                    arrive(full);
                continue;
            }
            if (at.block == 0)
                *(local tile *)(arena + TILES_AT + TILE_BYTES * stage) = (tile){
                    more ? (int)w.group : -1, at.line + (WGRAD ? w.group * s.lines : w.first),
                    WGRAD ? (w.group + 1) * s.lines : w.last, at.column, k_size};
            if (blocks > 0)
                load_operands(&w, at, map_a, map_b, base + stage * STAGE_BYTES, full);
            else
                arrive(full);
        }
        if (!more)
            return;
    }
}

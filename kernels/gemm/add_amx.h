/*
 * Selected by tile.h for DOT = 2 and AMX = 1: the matrix unit of Intel's CPUs adds 16 pairs at a
 * time to chains of bf16 products:
 *
 *   sum += (first[0] + ... + first[15]) + (second[0] + ... + second[15])
 *
 * `first` are the products of the first values of each pair, `second` those of the second values.
 * Each of the two sums is a chain of fma in order from 0. Steps begin where the reduction begins,
 * and missing pairs of the last step are zeros. The unit flushes subnormal numbers.
 *
 * The unit holds the 32 x 32 sums of a tile as four parts of 16 x 16. For each step the unit reads
 * 16 pairs of 16 lines at a time, and 16 rows of a panel. The process must be allowed to use the
 * unit.
 */
/* The 8 tile registers of the unit: 16 rows of 64 bytes each. */
typedef struct tile_shapes {
    uchar palette, start, unused[14];
    ushort bytes[16];
    uchar rows[16];
} tile_shapes;

static inline void begin_tiles(void) {
    tile_shapes shapes = {.palette = 1};
    for (int i = 0; i < 8; i++) {
        shapes.bytes[i] = 64;
        shapes.rows[i] = 16;
    }
    __asm__ volatile("ldtilecfg %0" : : "m"(shapes));
}

/* Releases the unit's state, so that context switches of this core need not save it. */
static inline void end_tiles(void) {
    __asm__ volatile("tilerelease");
}

/* LOAD_TILE and STORE_TILE move a register from and to 16 rows at `at`, `stride` bytes apart.
 * ADD_TILES: sums += lines x rows of a panel. */
#define LOAD_TILE(tile, at, stride)                                                                \
    __asm__ volatile("tileloadd (%0, %1, 1), %%tmm" #tile                                          \
                     :                                                                             \
                     : "r"((ulong)(at)), "r"((ulong)(stride))                                      \
                     : "memory")
#define STORE_TILE(tile, at, stride)                                                               \
    __asm__ volatile("tilestored %%tmm" #tile ", (%0, %1, 1)"                                      \
                     :                                                                             \
                     : "r"((ulong)(at)), "r"((ulong)(stride))                                      \
                     : "memory")
#define ADD_TILES(sums, lines, rows)                                                               \
    __asm__ volatile("tdpbf16ps %tmm" #rows ", %tmm" #lines ", %tmm" #sums)

static inline void add_steps(accumulators acc, LINE line, int lines, int stride,
                             PANEL const vec *row, int steps) {
    const ulong next = stride * sizeof(element), width = WIDTH * sizeof(vec);
    LOAD_TILE(0, &acc[0][0], width);
    LOAD_TILE(1, &acc[0][1], width);
    LOAD_TILE(2, &acc[16][0], width);
    LOAD_TILE(3, &acc[16][1], width);
    for (int s = 0; s < steps; s++, line += STEP, row += STEP * WIDTH) {
        LOAD_TILE(4, line, next);
        LOAD_TILE(6, row, width);
        ADD_TILES(0, 4, 6);
        LOAD_TILE(7, row + 1, width);
        ADD_TILES(1, 4, 7);
        LOAD_TILE(5, line + 16 * stride, next);
        ADD_TILES(2, 5, 6);
        ADD_TILES(3, 5, 7);
    }
    STORE_TILE(0, &acc[0][0], width);
    STORE_TILE(1, &acc[0][1], width);
    STORE_TILE(2, &acc[16][0], width);
    STORE_TILE(3, &acc[16][1], width);
}

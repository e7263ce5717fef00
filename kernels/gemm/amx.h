/*
 * Included by gemm.h for DOT = 2: chains of bf16 products in steps of 16 pairs, as the matrix unit
 * of Intel's CPUs (AMX) adds them:
 *
 *   sum += (first[0] + ... + first[15]) + (second[0] + ... + second[15])
 *
 * `first` are the products of the first values of each pair, `second` those of the second values.
 * Each of the two sums is a chain of fma in order from 0. Steps begin where the reduction begins,
 * and missing pairs of the last step are zeros. The code for other CPUs computes the same bits,
 * except that AMX flushes subnormal numbers.
 *
 * A tile is 32 x 32 sums in memory; the unit holds four parts of 16 x 16. For each step it reads 16
 * pairs of 16 lines at a time, and 16 rows of a panel.
 *
 * Required: LINES = 32, WIDTH = PANEL_WIDTH = 2; AMX (0; 1: the CPU has the unit, and the process
 * may use it).
 */
#if !defined(AMX) || LINES != 32 || WIDTH != 2 || PANEL_WIDTH != 2
#error "AMX must be defined; tiles have 32 lines, and 2 vectors as panels do"
#endif

#if AMX
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
#else
#define begin_tiles()
#define end_tiles()

static inline void add_steps(accumulators acc, LINE line, int lines, int stride,
                             PANEL const vec *row, int steps) {
    for (int s = 0; s < steps; s++, line += STEP, row += STEP * WIDTH)
        for (int r = 0; r < min(LINES, lines); r++) {
            vec first[WIDTH] = {0.0f, 0.0f}, second[WIDTH] = {0.0f, 0.0f};
            ROLLED for (int p = 0; p < STEP; p++) {
                const uint a = line[r * stride + p];
                UNROLL_FOR(int v = 0; v < WIDTH; v++) {
                    const uint16 b = as_uint16(row[p * WIDTH + v]);
                    first[v] =
                        fma((vec)as_float(a & 0xFFFF0000u), as_float16(b & 0xFFFF0000u), first[v]);
                    second[v] = fma((vec)as_float(a << 16), as_float16(b << 16), second[v]);
                }
            }
            UNROLL_FOR(int v = 0; v < WIDTH; v++)
                acc[r][v] += first[v] + second[v];
        }
}
#endif

/* Adds `dots` dots to a tile. All lines are equally far apart. Lines from `lines` on may be
 * skipped. */
static inline void add_dots(accumulators acc, LINE const line[LINES], int lines,
                            PANEL const vec *row, int height, int dots, prefetch_plan *next_panels,
                            prefetch_plan *next_lines) {
    add_steps(acc, line[0], lines, (int)(line[1] - line[0]), row, (dots + STEP - 1) / STEP);
}

static inline void begin_tile(accumulators acc, target c, bool fresh) {
    for (int r = 0; r < LINES; r++)
        UNROLL_FOR(int v = 0; v < WIDTH; v++)
            acc[r][v] = fresh || r >= c.lines
                            ? 0.0f
                            : load_part(c.at + r * c.line + v * VEC, c.columns - v * VEC);
}

static inline void end_tile(accumulators acc, target c) {
    for (int v = 0; v < WIDTH && v * VEC < c.columns; v++) {
        const int columns = c.columns - v * VEC;
        const vec bias = c.bias != 0 ? load_part(c.bias + v * VEC, columns) : 0.0f;
        for (int r = 0; r < c.lines; r++) {
            const vec x = c.bias != 0 ? acc[r][v] + bias : acc[r][v];
            store_sum_part(x, c, r * c.line + v * VEC, columns);
        }
    }
}

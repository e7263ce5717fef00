/* Selected by tile.h for DOT = 2 and AMX = 0: the sums of add_amx.h on any CPU, with the same bits
 * except that subnormal numbers stay as they are. */
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

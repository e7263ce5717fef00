/* Selected by tile.h for DOT = 0: a chain adds one product at a time, with one rounding, in any
 * vectors that the driver compiles for. */
static inline vec multiply_add(vec sum, spread a, vec b) {
    return fma(a, b, sum);
}

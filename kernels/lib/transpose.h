/*
 * Transposes 16x16 floats, in the CPU form. Every step is a perfect shuffle: it rotates the 8 index
 * bits (row, lane) of an element by one. Required: TRANSPOSE_STEPS (ROLLED or UNROLL, for the four
 * steps).
 */
#ifndef TRANSPOSE_STEPS
#error "TRANSPOSE_STEPS must be defined"
#endif

static inline void transpose(vec block[VEC]) {
    TRANSPOSE_STEPS for (int step = 0; step < 4; step++) {
        vec transposed[VEC];
        UNROLL_FOR(int i = 0; i < VEC / 2; i++) {
            transposed[2 * i].even = block[i].lo;
            transposed[2 * i].odd = block[i + VEC / 2].lo;
            transposed[2 * i + 1].even = block[i].hi;
            transposed[2 * i + 1].odd = block[i + VEC / 2].hi;
        }
        UNROLL_FOR(int i = 0; i < VEC; i++)
            block[i] = transposed[i];
    }
}

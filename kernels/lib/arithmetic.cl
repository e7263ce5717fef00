/*
 * Computes what src/device/arithmetic.c compares with the host's results. operands[3,n] are x, y
 * and z; result[2,R,n] are the R operations of args/arithmetic.h, computed with vectors and with
 * scalars; four sums follow.
 *
 *   operations   result[0,r,i] = result[1,r,i] = operation r of x[i], y[i], z[i]; n is a multiple
 *                of VEC
 *   sums         sums[4] = over i from `first` on, in order: sum of x, of x y, and of x^2 (in
 *                float64 if the device has it), and the part of the last sum that rounding to a
 *                float removes
 *
 * One row group. No local memory. Deterministic.
 */
#include "args/arithmetic.h"

KERNEL void operations(global const float *operands, global float *result, int n) {
    global const float *xs = operands, *ys = xs + n, *zs = ys + n;
    for (int i = 0; i < n; i += VEC) {
        const vec x = load_part(xs + i, VEC), y = load_part(ys + i, VEC),
                  z = load_part(zs + i, VEC);
#define STORE(name, formula) store_part(formula, result + MOERT_ARITHMETIC_##name * n + i, VEC);
        MOERT_ARITHMETIC_TABLE(STORE)
#undef STORE
    }
    result += MOERT_ARITHMETIC_ROWS * n;
    for (int i = item_index(); i < n; i += MOERT_ITEMS) {
        const float x = xs[i], y = ys[i], z = zs[i];
#define STORE(name, formula) result[MOERT_ARITHMETIC_##name * n + i] = formula;
        MOERT_ARITHMETIC_TABLE(STORE)
#undef STORE
    }
}

#if MOERT_FP64
typedef double real;
#else
typedef float real;
#endif

KERNEL void sums(global const float *operands, global float *result, int n, int first) {
    global const float *x = operands, *y = x + n;
    float plain = 0.0f, products = 0.0f;
    real squares = 0;
    if (!is_first_item())
        return;
    IN_ORDER_FOR(int i = first; i < n; i++)
        plain += x[i];
    IN_ORDER_FOR(int i = first; i < n; i++)
        products += x[i] * y[i];
    IN_ORDER_FOR(int i = first; i < n; i++)
        squares += (real)x[i] * (real)x[i];
    result += 2 * MOERT_ARITHMETIC_ROWS * n;
    result[0] = plain;
    result[1] = products;
    result[2] = (float)squares;
    result[3] = (float)(squares - (real)(float)squares);
}

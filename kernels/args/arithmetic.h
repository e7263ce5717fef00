/*
 * Included by C and OpenCL: the operations on which the bits of results rest, one in each row:
 *
 *   X(name, formula)   x, y and z are floats, or vectors of floats
 */
#ifndef MOERT_ARGS_ARITHMETIC_H
#define MOERT_ARGS_ARITHMETIC_H

/* clang-format off */
#define MOERT_ARITHMETIC_TABLE(X) \
    X(add, x + y)                 \
    X(multiply, x * y)            \
    X(multiply_add, x * y + z)    \
    X(fma, fma(x, y, z))          \
    X(divide, x / y)              \
    X(root, sqrt(x))              \
    X(round, rint(x))
/* clang-format on */

#define MOERT_ARITHMETIC_ROW(name, formula) MOERT_ARITHMETIC_##name,
enum { MOERT_ARITHMETIC_TABLE(MOERT_ARITHMETIC_ROW) MOERT_ARITHMETIC_ROWS };
#undef MOERT_ARITHMETIC_ROW

#endif

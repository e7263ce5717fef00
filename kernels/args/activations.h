/*
 * Included by C and OpenCL: the activation functions a of a GLU's gate, one in each row:
 *
 *   X(name, a(x), q a'(x))   x, q and s = sigmoid(alpha x) are floats or vectors of floats, alpha
 *                            is a float
 *
 * `name` is the hidden_act of a model's configuration. The order of operations in the expressions
 * fixes the bits of the results.
 */
#ifndef MOERT_ARGS_ACTIVATIONS_H
#define MOERT_ARGS_ACTIVATIONS_H

/* clang-format off */
#define MOERT_ACTIVATION_TABLE(X) \
    X(silu, x * s, q * s * (1.0f + alpha * x * (1.0f - s)))
/* clang-format on */

#define MOERT_ACTIVATION_ROW(name, value, slope) MOERT_ACTIVATION_##name,
enum { MOERT_ACTIVATION_TABLE(MOERT_ACTIVATION_ROW) MOERT_ACTIVATIONS };
#undef MOERT_ACTIVATION_ROW

/* Returns a(x) and sets *slope = q a'(x) for activation `which`. The table's first row is computed
 * without comparing `which`; later rows replace its result. */
#define MOERT_ACTIVATE(type, sigmoid)                                                              \
    static inline type activate(type x, float alpha, int which, type q, type *slope) {             \
        const type s = sigmoid(alpha * x);                                                         \
        type a;                                                                                    \
        MOERT_ACTIVATION_TABLE(MOERT_ACTIVATION_CASE)                                              \
        return a;                                                                                  \
    }
#define MOERT_ACTIVATION_CASE(name, value, derivative)                                             \
    if (MOERT_ACTIVATION_##name == 0 || which == MOERT_ACTIVATION_##name) {                        \
        a = value;                                                                                 \
        *slope = derivative;                                                                       \
    }

#endif

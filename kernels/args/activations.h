/*
 * Included by C and OpenCL: the activations a of a GLU's gate, a row each:
 *
 *   X(name, a(x), q a'(x))   of floats, or vectors of them, x, q and s = sigmoid(alpha x), and alpha
 *
 * A model's hidden_act is the name. The expressions fix the bits.
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

/* a(x), and *slope = q a'(x), of activation number `which`; the first row is a test less. */
#define MOERT_ACTIVATE(number, sigmoid)                                                            \
    static inline number activate(number x, float alpha, int which, number q, number *slope) {     \
        const number s = sigmoid(alpha * x);                                                       \
        number a;                                                                                  \
        MOERT_ACTIVATION_TABLE(MOERT_ACTIVATION_CASE)                                              \
        return a;                                                                                  \
    }
#define MOERT_ACTIVATION_CASE(name, value, derivative)                                             \
    if (MOERT_ACTIVATION_##name == 0 || which == MOERT_ACTIVATION_##name) {                        \
        a = value;                                                                                 \
        *slope = derivative;                                                                       \
    }

#endif

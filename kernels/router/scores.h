/*
 * Included by router.cl and gpu.cl: the kinds of scores that stand for a logit alone, their
 * slopes, and scores as keys.
 */
enum { NO_EXPERT = -1, BAD_TOKEN = -2 };
#define TINY 1e-20f
enum { SOFTMAX, SOFTMAX_TOPK, SIGMOID, SQRT_SOFTPLUS }; /* as moert_score */

/* Whether a score depends on its own logit alone, so that the scores have no sum of their own. */
static inline bool stands_alone(int score) {
    return score >= SIGMOID;
}

/* Scores of such a kind. Below -16 log(1 + e^x) is e^x to the last bit, and its root stays clear of
 * underflow. */
static inline vec lone_scores(vec x, int score) {
    if (score == SIGMOID)
        return 1.0f / (1.0f + exp(-x));
    return select(sqrt(fmax(x, 0.0f) + log1p(exp(-fabs(x)))), exp(0.5f * x), x < -16.0f);
}

/* g = (ds/dl) / s, or 1 where scores do not stand alone. */
static inline vec slopes(vec s, int score) {
    const vec square = s * s;
    if (score == SIGMOID)
        return 1.0f - s;
    if (score == SQRT_SOFTPLUS)
        return select(-0.5f * expm1(-square) / square, (vec)0.5f, square < 0x1p-24f);
    return 1.0f;
}

/* Unsigned numbers in the order of the floats, -0 as 0; no float but a NaN becomes 0. */
static inline uint order_key(float x) {
    uint bits = as_uint(x + 0.0f);
    return bits ^ (as_uint(as_int(bits) >> 31) | 0x80000000u);
}

static inline uvec order_keys(vec x) {
    uvec bits = as_uvec(x + 0.0f);
    return bits ^ (as_uvec(as_ivec(bits) >> 31) | 0x80000000u);
}

static inline float key_value(uint key) {
    return as_float(key ^ (key >> 31 ? 0x80000000u : 0xffffffffu));
}

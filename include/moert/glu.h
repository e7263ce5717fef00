/* The gated linear unit between an expert's two GEMMs. */
#ifndef MOERT_GLU_H
#define MOERT_GLU_H

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/*
 * h = prob * (clamp(u, -limit, limit) + offset) * gc * sigmoid(alpha * gc), gc = min(g, limit),
 * over v = [g | u] (halves) or alternating columns g, u (interleaved).
 */
typedef struct moert_glu_form {
    bool interleaved;
    float limit, alpha, offset;
} moert_glu_form;

#define MOERT_GLU_SWIGLU                                                                           \
    { false, __builtin_inff(), 1.0f, 0.0f } /* Mixtral, Qwen3-MoE, OLMoE, DeepSeek-V3 */
#define MOERT_GLU_GPT_OSS                                                                          \
    { true, 7.0f, 1.702f, 1.0f }

#ifdef __cplusplus
}
#endif
#endif

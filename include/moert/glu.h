/* The gated linear unit between an expert's two GEMMs. */
#ifndef MOERT_GLU_H
#define MOERT_GLU_H

#include <stdbool.h>

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

/*
 * h = prob * (clamp(u, -limit, limit) + offset) * a(min(g, limit)), where v = [g | u] (halves), or
 * g and u are alternating columns of v (interleaved). `activation` is the index of a. Index 0 is
 * silu: a(x) = x * sigmoid(alpha * x).
 */
typedef struct moert_glu_form {
    bool interleaved;
    float limit, alpha, offset;
    int activation;
} moert_glu_form;

/* The index of the activation that Hugging Face's hidden_act names; -1 if moert has none. */
MOERT_API int moert_activation_find(const char *name);
/* The name of an activation; NULL if there is no such index. */
MOERT_API const char *moert_activation_name(int activation);

#define MOERT_GLU_SWIGLU                                                                           \
    { false, __builtin_inff(), 1.0f, 0.0f, 0 } /* Mixtral, Qwen3-MoE, OLMoE, DeepSeek-V3 */
#define MOERT_GLU_GPT_OSS                                                                          \
    { true, 7.0f, 1.702f, 1.0f, 0 }

#ifdef __cplusplus
}
#endif
#endif

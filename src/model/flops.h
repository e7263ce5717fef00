/* The floating-point operations of a model. */
#pragma once

#include "io/model_config.h"

/*
 * The FLOPs that a training step needs for one sequence of `length` tokens, forward and backward: 2
 * for each multiply-add of the GEMMs and of attention, and twice those of the forward for the
 * backward (Chowdhery et al., "PaLM", 2022, appendix B). Attention counts the pairs of tokens that
 * its causal mask and its window leave. Norms, activations, the softmax and repeated forwards do
 * not count.
 */
double moert_model_flops(const moert_model_config *config, size_t length);

/* The floating-point operations of a model. */
#pragma once

#include "io/model_config.h"

/*
 * The FLOPs that a training step needs for one sequence of `length` tokens, forward and backward:
 * Each multiply-add of the GEMMs and of attention is 2 FLOPs, and the backward needs twice the
 * FLOPs of the forward (Chowdhery et al., "PaLM", 2022, appendix B). Only pairs of tokens that pass
 * the causal mask and the window are counted. Norms, activations, the softmax and recomputed
 * forwards are not counted.
 */
double moert_model_flops(const moert_model_config *config, size_t length);

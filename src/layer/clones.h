/*
 * Clones of experts: several ranks compute one expert, each a range of its rows
 * (plan/expert_map.h). Forward and dgrad need nothing more than the expert's weight. A weight
 * gradient is one chain of sums over the expert's rows. The first member of the expert's chain
 * starts the sums, and each next member continues from the sums of the previous one. The expert
 * itself gets the gradient from the last member. So the bits are the same as if one rank computed
 * all rows. With `accumulate` the expert first hands its old gradient to the first member.
 *
 * The slots of clones also have weights and gradients. These gradients are partial sums that only
 * the chain uses. Calls are collective over the EP group.
 */
#pragma once

#include "layer/internal.h"

/* Reserves the memory that clones need in the layer's present placement; the calls below then
 * allocate no memory. Not collective. Errors: ERROR_UNSUPPORTED (too many clones on this rank),
 * ERROR_MEMORY. */
moert_status moert_clones_prepare(moert_layer *layer);

/*
 * Run a wgrad or bias_grad of all local experts (as moert_gemm_run), or the scaled bias gradient
 * (as moert_scaled_bias_gradient), along the chains. Results are per slot. A failure becomes the
 * status of the pass. A rank whose pass has failed sends and receives in the chains without
 * computing, so that no other rank blocks.
 */
void moert_clones_gemm(moert_pass *pass, const moert_gemm *gemm);
void moert_clones_bias_gradient(moert_pass *pass, const moert_scaled_bias *bias);

/* Begins to send the weights of experts to their clones, if they have changed since the last call.
 * Until moert_clones_take the weights must not change, and no other layer of the mesh may use its
 * clones. */
moert_status moert_clones_send(moert_layer *layer);
/* Waits for the weights that moert_clones_send sends. */
moert_status moert_clones_take(moert_layer *layer);

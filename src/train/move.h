/* Moves experts between ranks: their weights and moments, bit for bit. */
#pragma once

#include "train/optimizer.h"

/*
 * Places the experts of MoE layer `layer` (moert_model_place), and sends weights and moments to
 * their new slots. Gradients are not moved, so call this function between steps. *moved_bytes, if
 * not NULL, gets the bytes that this rank has sent to other ranks. Needs host memory for the values
 * that this rank sends and receives. Collective. Errors, the same on all ranks: ERROR_USAGE,
 * ERROR_MEMORY, ERROR_DEVICE, ERROR_COMM. After an error, weights and moments may be incomplete.
 */
moert_status moert_move_experts(moert_optimizer *optimizer, size_t layer, const uint32_t *expert,
                                uint64_t *moved_bytes);

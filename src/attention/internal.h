/* The implementations of attention. src/attention/attention.c checks the arguments, sets value_size
 * and window (at most the length) where they are 0, chooses one, and computes dsinks. */
#pragma once

#include "attention/attention.h"

/* Any device, in float32. */
moert_status moert_attention_portable_forward(const moert_attention *attention);
moert_status moert_attention_portable_backward(const moert_attention *attention);

/* Hopper's tensor cores. `supports`: NULL if they compute this attention; else a text that
 * completes "they take", such as "no window". Reads no buffer. */
const char *moert_attention_nvidia_supports(const moert_device *device,
                                            const moert_attention *attention);
size_t moert_attention_nvidia_scratch_bytes(const moert_attention *attention);
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

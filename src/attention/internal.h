/* The implementations of attention. src/attention/attention.c checks the arguments, replaces a
 * value_size or window of 0 by its default (the window is at most the length), chooses an
 * implementation, and computes dsinks. */
#pragma once

#include "attention/attention.h"

/* Attention on any device, in float32. */
moert_status moert_attention_portable_forward(const moert_attention *attention);
moert_status moert_attention_portable_backward(const moert_attention *attention);

/* Attention on Hopper's tensor cores. moert_attention_nvidia_supports returns NULL if the tensor
 * cores compute this attention, else a text that completes "they take", such as "no window". It
 * reads no buffer. */
const char *moert_attention_nvidia_supports(const moert_device *device,
                                            const moert_attention *attention);
size_t moert_attention_nvidia_scratch_bytes(const moert_attention *attention);
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

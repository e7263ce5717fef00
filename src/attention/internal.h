/* The implementations of attention. src/attention/attention.c checks the arguments, sets value_size
 * and window (at most the length) where they are 0, chooses one, and computes dsinks. */
#pragma once

#include "attention/attention.h"

/* Any device, in float32. */
moert_status moert_attention_portable_forward(const moert_attention *attention);
moert_status moert_attention_portable_backward(const moert_attention *attention);

/* Hopper's tensor cores. `takes`: whether the device and all options allow them. */
bool moert_attention_nvidia_takes(const moert_attention *attention);
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

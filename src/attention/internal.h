/* The implementations of attention. src/attention/attention.c checks the arguments and chooses
 * one. */
#pragma once

#include "attention/attention.h"

/* Any device, in float32. */
moert_status moert_attention_portable_forward(const moert_attention *attention);
moert_status moert_attention_portable_backward(const moert_attention *attention);

/* Hopper's tensor cores. `takes`: whether the type, the device and head_size allow them. */
bool moert_attention_nvidia_takes(const moert_attention *attention);
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

/* The forms of attention, which src/attention/attention.c chooses between. Descriptions have been
 * checked. */
#pragma once

#include "attention/attention.h"

/* Any device, in float32. */
moert_status moert_attention_portable_forward(const moert_attention *attention);
moert_status moert_attention_portable_backward(const moert_attention *attention);

/* Hopper's tensor cores: whether this form is asked for, and can do it. */
bool moert_attention_nvidia_takes(const moert_attention *attention);
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

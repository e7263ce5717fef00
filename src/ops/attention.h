/* The form of attention for Hopper's tensor cores, which src/ops/attention.c calls where it serves.
 */
#ifndef MOERT_OPS_ATTENTION_H
#define MOERT_OPS_ATTENTION_H

#include "ops/dense.h"

/* Whether this form is asked for, and can do it. */
bool moert_attention_nvidia_takes(const moert_attention *attention);
/* Of a description that has been checked. */
moert_status moert_attention_nvidia_forward(const moert_attention *attention);
moert_status moert_attention_nvidia_backward(const moert_attention *attention);

#endif

/* Checks of what callers pass to a layer: options, batches, buffers. */
#pragma once

#include "layer/internal.h"

/* ERROR_USAGE unless the sizes of all tensors fit the address space and the kernels' integers, on a
 * rank with the most experts of `ranks` ranks. */
moert_status moert_layer_check_sizes(const moert_layer_options *options, size_t ranks);

/* ERROR_USAGE on all ranks if a rank has other options than rank 0; the message names the field,
 * the values and the ranks. Collective over the mesh's context. */
moert_status moert_layer_compare_options(const moert_mesh *mesh,
                                         const moert_layer_options *options);

/* ERROR_USAGE if the buffer `name` is NULL, of another device, or has less than `bytes`. */
moert_status moert_layer_check_buffer(const moert_layer *layer, const char *name,
                                      const moert_buffer *buffer, size_t bytes);
/* Like moert_layer_check_buffer, for a batch's rows in bf16, which may be NULL. */
moert_status moert_layer_check_bf16(const moert_layer *layer, const char *name,
                                    const moert_buffer *rows, const moert_batch *batch);
/* ERROR_USAGE if the two buffers share memory. */
moert_status moert_layer_check_apart(const char *name, const moert_buffer *buffer,
                                     const char *other_name, const moert_buffer *other,
                                     const char *why);

/* Checks the numbers of a batch and its `ends`. Waits for the device to read the ends, unless the
 * layer trusts its batches (moert_layer_trust_batches). */
moert_status moert_layer_check_batch(const moert_layer *layer, const moert_batch *batch);

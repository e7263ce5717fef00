/*
 * What a row of x or dy is while it travels to the owners of its experts (moert_dispatch): its
 * float32 values, or the payload and the scales that stand for them. To the exchange it is a row of
 * so many floats, which dispatch copies bit by bit. And what their results are on the way back
 * (moert_combine).
 */
#pragma once

#include "layer/internal.h"

/* The width of a window for rows on their way, in floats. */
size_t moert_wire_width(const moert_layer_options *options);
/* The same of the results on their way back. */
size_t moert_wire_back_width(const moert_layer_options *options);

/* rows[T,H] as they travel: themselves, or a scratch buffer until the next pack or rounding. */
moert_status moert_wire_pack(moert_layer *layer, const moert_buffer *rows,
                             const moert_buffer **prepacked);
/* Whether the experts' forward and dgrad can take the rows of some experts alone: if nothing is
 * made of all rows, before them or after. */
bool moert_wire_takes_chunks(const moert_layer_options *options);
/* The rows [M,H] that have come to a window, `*stride` floats apart: where they are, or a scratch
 * buffer until the next unpack. If they are operands: where they are, as codes and `*stride` codes
 * apart. */
moert_status moert_wire_unpack(moert_layer *layer, const moert_window *window, moert_buffer **rows,
                               size_t *stride);

/* How the experts' results go back, of forward or not: the window, with room for those of
 * layer->plan, and the cells if they are sent to their tokens' ranks. Collective when the window is
 * new or grows. */
moert_status moert_wire_back(moert_layer *layer, bool forward, moert_transfer *back);
/*
 * Where a product is to make its results [M,H]: y of a forward one, else x. In that window, if need
 * be rounded; or, where products do not round, in a scratch buffer until the next unpack, with the
 * window's gaps. If they are sent: at their places or, where products do not scatter or ranks sum
 * them first, in a scratch buffer.
 */
moert_status moert_wire_results(moert_layer *layer, const moert_transfer *back, bool forward,
                                moert_gemm *product);
/* They are made: brings them into the window, or sends them, if they are elsewhere. */
moert_status moert_wire_return(moert_layer *layer, moert_transfer *back, const moert_gemm *product);

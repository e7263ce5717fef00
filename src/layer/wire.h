/*
 * The representation of rows on the wire. Rows of x and dy travel to the owners of their experts as
 * float32, as bf16 or as MXFP8 payload and scales (moert_dispatch). The exchange copies them bit by
 * bit, as rows of floats. The experts' results travel back as float32 or bf16 (moert_combine).
 */
#pragma once

#include "layer/internal.h"

/* The bytes of a row of x or dy, and the width in floats of a window that receives such rows. */
size_t moert_wire_bytes(const moert_layer_options *options);
size_t moert_wire_width(const moert_layer_options *options);
/* The width in floats of a window of the experts' results. */
size_t moert_wire_back_width(const moert_layer_options *options);

/* *wire_rows = rows[T,H], of the batch's type, in the wire's representation: `rows`, the buffer of
 * moert_layer_give_bf16, or a scratch buffer that is valid until the next pack or rounding. */
moert_status moert_wire_pack(moert_pass *pass, const moert_buffer *rows,
                             const moert_buffer **wire_rows);
/* *target = float32 [T,H] for the combine of y or dx: `result` or, if that is bf16, scratch, which
 * moert_wire_round then rounds to `result`. */
moert_status moert_wire_target(const moert_pass *pass, moert_buffer *result, moert_buffer **target);
moert_status moert_wire_round(const moert_pass *pass, moert_buffer *target, moert_buffer *result);
/* Whether the experts' forward and dgrad can process the rows of some experts only, because no
 * conversion before or after them needs all rows. */
bool moert_wire_takes_chunks(const moert_layer_options *options);
/* *rows = the rows [M,H] that a window received, `*stride` elements apart. They are float32, in the
 * window or in a scratch buffer that is valid until the next unpack. If moert_precision_takes_wire
 * is true, the rows are the window's bf16 values instead. */
moert_status moert_wire_unpack(moert_pass *pass, const moert_window *window, moert_buffer **rows,
                               size_t *stride);

/* Prepares *back for the experts' results. Its window gets room for pass->plan. In forward, if
 * ranks push the results to the tokens' ranks, *back also gets cells. Collective when the window is
 * new or grows. */
moert_status moert_wire_back(moert_pass *pass, bool forward, moert_transfer *back);
/*
 * Selects the GEMM's output buffer for the results [M,H]: y of a forward, else x. Without a push,
 * this is the window (rounded if needed). With a push, the GEMM scatters its rows to the windows of
 * the tokens' ranks. If the GEMM cannot round or scatter, or if ranks sum rows before they push
 * them, the output is a scratch buffer with the window's gaps, valid until the next unpack.
 */
moert_status moert_wire_results(moert_pass *pass, const moert_transfer *back, bool forward,
                                moert_gemm *gemm);
/* After the GEMM: moves its results from scratch to the window, or pushes them. Does nothing if the
 * GEMM has stored the results there. */
moert_status moert_wire_return(moert_pass *pass, moert_transfer *back, const moert_gemm *gemm);

/*
 * The representation of rows on the wire. Rows of x and dy travel to the owners of their experts as
 * float32, as bf16 or as MXFP8 payload and scales (moert_dispatch). The exchange copies the rows
 * bit by bit, as rows of floats. The experts' results travel back as float32 or bf16
 * (moert_combine).
 */
#pragma once

#include "layer/experts.h"

/* *wire_rows = rows[T,H], of the batch's type, in the wire's representation: `rows`, `bf16` (their
 * values in bf16, or NULL), or a scratch buffer that is valid until the next pack or rounding. */
moert_status moert_wire_pack(moert_pass *pass, const moert_buffer *rows, const moert_buffer *bf16,
                             const moert_buffer **wire_rows);
/* Sets the target of the combine, float32 [T,H]: pass->result or, if that is bf16, scratch, which
 * moert_wire_round then rounds. */
moert_status moert_wire_target(moert_pass *pass);
moert_status moert_wire_round(const moert_pass *pass);
/* *rows = the rows [M,H] that a window received, as the experts' GEMMs get them
 * (moert_layer_choices.received): in the window or, if they must be converted, in a scratch buffer
 * that is valid until the next unpack. */
moert_status moert_wire_unpack(moert_pass *pass, const moert_window *window, moert_matrix *rows);

/* Prepares pass->back for the experts' results. The window of pass->back gets room for pass->plan.
 * In forward, if ranks push the results to the tokens' ranks, pass->back also gets the window of
 * their slots. Collective when the window is new or grows. */
moert_status moert_wire_back(moert_pass *pass, bool forward);
/*
 * Selects where a GEMM puts the results [M,H]. Without a push, this is the window. With a push, the
 * GEMM scatters its rows to the windows of the tokens' ranks. If the GEMM cannot round or scatter,
 * or if ranks sum rows before they push them, the GEMM writes to a scratch buffer with the window's
 * gaps, valid until the next unpack.
 */
moert_status moert_wire_choose_output(moert_pass *pass, bool forward, moert_result *result);
/* Call it after the GEMM: copies the results from scratch to the window, or pushes them. Does
 * nothing if the GEMM has stored its results in the windows. */
moert_status moert_wire_return(moert_pass *pass, const moert_result *result);

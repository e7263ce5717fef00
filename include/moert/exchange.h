/*
 * The exchange without the layer: sends tokens to the owners of their experts and back, for
 * programs that compute the experts themselves.
 *
 *   tokens[T,H], index[T,K] -> route -> dispatch -> rows[M,H], ends[L] -> your experts -> rows[M,H]
 *          -> combine -> tokens[T,H]
 *
 * A route is made from the experts that the tokens chose. Any number of routes of a mesh may exist
 * at once. Each route may have other tokens, and calls of different routes may come in any order.
 * The mesh determines the ranks and the engine (moert/layer.h); all engines give the same bits.
 *
 * Rows are in the order of moert/plan.h: expert by expert, and within an expert in global token
 * order. The rows form dense row-major matrices in buffers of the caller. `ends` can be passed to
 * op objects without a change. With row_multiple, rows of zeros follow the rows of each expert, so
 * that every expert's rows begin at a multiple of row_multiple.
 *
 * Unless a call's comment says otherwise, the call is collective over the EP group of the mesh: all
 * ranks make the same calls in the same order, with the same columns, types and kinds of buffers.
 * Each call waits for all work enqueued on this rank's device, then for the other ranks. When a
 * call returns, its own last kernels may still be enqueued, so use its buffers in queue order. All
 * ranks return the same error: ERROR_USAGE (a wrong argument, or arguments that differ between
 * ranks; the message names argument and rank), ERROR_MEMORY, ERROR_DEVICE, ERROR_COMM.
 */
#ifndef MOERT_EXCHANGE_H
#define MOERT_EXCHANGE_H

#include <stdbool.h>
#include <stdint.h>

#include "moert/formats.h"
#include "moert/layer.h"
#include "moert/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

typedef struct moert_route moert_route;

typedef struct moert_route_options {
    size_t size;               /* sizeof(moert_route_options) */
    size_t experts, topk;      /* E, K; the same on all ranks */
    size_t tokens;             /* T of this rank; may be 0 */
    const moert_buffer *index; /* int32 [T,K]: the expert of each slot, or -1: dropped. The buffer
                                  need not outlive the call */
    size_t row_multiple;       /* rows of zeros fill up each expert's rows to a multiple of this
                                  number; 0 means 1 */
} moert_route_options;

#define MOERT_ROUTE_OPTIONS_INIT MOERT_INIT(moert_route_options, route_, )

/* `mesh` must outlive the route. Errors: also ERROR_USAGE for an index outside -1..E-1 or a token
 * that chose an expert twice (names the token), ERROR_UNSUPPORTED (too many rows). */
MOERT_API moert_status moert_route_create(moert_mesh *mesh, const moert_route_options *options,
                                          moert_route **route);
/* Enqueued work may still use the route. Not collective. NULL is legal. */
MOERT_API void moert_route_destroy(moert_route *route);

/* moert_route_rows returns M, including the rows of zeros. moert_route_ends returns the ends of
 * this rank's experts, uint32 [L] on the device. moert_route_plan returns the plan on the host,
 * whose rows and ends do not count rows of zeros. The route owns the results. For a NULL route the
 * calls return 0 or NULL. Not collective. */
MOERT_API size_t moert_route_rows(const moert_route *route);
MOERT_API moert_buffer *moert_route_ends(const moert_route *route);
MOERT_API const moert_plan *moert_route_plan(const moert_route *route);

/*
 * The buffers of a call. Set both `row_weight` and `weight` or neither, except in combine, which
 * needs no row_weight.
 */
typedef struct moert_route_buffers {
    size_t size;              /* sizeof(moert_route_buffers) */
    size_t columns;           /* H */
    moert_dtype type;         /* F32 or BF16: dtype of rows, and of tokens that are dispatched. BF16
                                 needs an even H. Tokens that a call writes are float32 */
    bool mxfp8;               /* dispatch: tokens are float32; rows are MXFP8 E4M3 (blocks along
                                 rows, RCEIL), which each token's own rank computes */
    moert_buffer *tokens;     /* [T,H] */
    moert_buffer *weight;     /* float32 [T,K], or NULL */
    moert_buffer *rows;       /* [M,H]; with mxfp8 these are the bytes of the payload */
    moert_buffer *row_weight; /* float32 [M], or NULL */
    moert_buffer *row_scale;  /* mxfp8: E8M0 bytes [M, ceil(H/32)] */
    const moert_buffer *combined_rows; /* combine_backward with weights: the rows that combine
                                          read */
    moert_buffer *weight_gradient;     /* combine_backward with weights: gets the gradients of the
                                          weights, float32 [T,K] */
} moert_route_buffers;

#define MOERT_ROUTE_BUFFERS_INIT MOERT_INIT(moert_route_buffers, route_, )

/*
 * rows[m] = tokens[t] of the slot (t,k) of row m; with `weight` also row_weight[m] = weight[t,k].
 * The rows that row_multiple adds are zeros, with weight 0. A row that goes to another rank has 4H
 * bytes, with BF16 2H, with MXFP8 H + H/32.
 */
MOERT_API moert_status moert_route_dispatch(moert_route *route, const moert_route_buffers *buffers);

/*
 * tokens[t] = sum over k of weight[t,k] * rows[row of (t,k)], in order of k, by fma from 0 in
 * float32; without `weight` each weight is 1. Dropped slots add nothing.
 */
MOERT_API moert_status moert_route_combine(moert_route *route, const moert_route_buffers *buffers);

/*
 * The gradient of dispatch. `rows` and, if dispatch sent weights, `row_weight` hold the gradients
 * of dispatch's results: tokens[t] = sum over k of rows[row of (t,k)], and weight[t,k] =
 * row_weight[row of (t,k)], or 0 for a dropped slot.
 */
MOERT_API moert_status moert_route_dispatch_backward(moert_route *route,
                                                     const moert_route_buffers *buffers);

/*
 * The gradient of combine. `tokens` holds the gradient of combine's result, with dtype `type`:
 * rows[m] = weight[t,k] * tokens[t], and with `weight` also weight_gradient[t,k] = sum over h of
 * combined_rows[m,h] * tokens[t,h].
 */
MOERT_API moert_status moert_route_combine_backward(moert_route *route,
                                                    const moert_route_buffers *buffers);

#ifdef __cplusplus
}
#endif
#endif

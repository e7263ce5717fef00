/*
 * Included by the kernels that move rows between ranks: windows and their rows, cells, and stores
 * that stream.
 *
 * Required: REMOTE (0, 1), see exchange.cl.
 */
#ifndef MOERT_EXCHANGE_WINDOW_H
#define MOERT_EXCHANGE_WINDOW_H

#if !defined(REMOTE)
#error "REMOTE must be defined (0, 1)"
#endif
#include "args/exchange.h"

#if MOERT_ITEMS == 1
#define TOKENS         MOERT_EXCHANGE_TOKENS
#define SLOTS          MOERT_EXCHANGE_SLOTS
#define FAN_ROW_GROUPS 1
#define PIECE          0x7fffffff /* whole rows */
#else
#define TOKENS         MOERT_EXCHANGE_GPU_TOKENS
#define SLOTS          MOERT_EXCHANGE_GPU_SLOTS
#define PIECE          MOERT_EXCHANGE_GPU_PIECE
#define STRIP          MOERT_EXCHANGE_GPU_STRIP
#define FAN_ROW_GROUPS MOERT_EXCHANGE_GPU_ROW_GROUPS
#endif
#define STREAMS 8
#define DROPPED 0xffffffffu

#if REMOTE
#define WINDOW global const ulong *
static inline global float *row_of(WINDOW window, uint2 to, uint stride) {
    return (global float *)(size_t)window[to.x] + (size_t)to.y * stride;
}
#else
#define WINDOW global float *
static inline global float *row_of(WINDOW window, uint2 to, uint stride) {
    return window + (size_t)to.y * stride;
}
#endif

/* A window of slots has rows of one cell each. dispatch_slots stores four words at the start of a
 * cell: the slot's float; the slot's number t K + k; the sending rank; and a link. The link's bit
 * 31 is set if an earlier slot of the token lies on the same rank. The link's other bits are 1 +
 * the row of the token's next slot on that rank, or 0 if there is none. */
typedef float16 cell;
#define CELL  16
#define LATER 0x80000000u

/* Stores 16 floats at a multiple of 64 bytes. */
static inline void put(cell x, global float *p) {
#if MOERT_CPU && defined(__clang__)
    __builtin_nontemporal_store(x, (global cell *)p);
#else
    *(global cell *)p = x;
#endif
}

/* Completes the stores of put before the kernel ends, so that the host and peers see them. */
static inline void put_end(void) {
#if MOERT_CPU && defined(__x86_64__)
    __builtin_ia32_sfence();
#endif
}

static inline global uint *origins_of(global float *rows, uint capacity, uint stride) {
    return (global uint *)(rows + (size_t)capacity * stride);
}

#endif

/*
 * How mma.cl copies blocks of both operands to local memory: every thread copies some pieces of 16
 * bytes of each block.
 */

/* The next block of an operand: the address of this thread's first piece, the distance of rows in
 * bytes, and the lines (or columns) and K values left from the block's first on. */
typedef struct operand {
    global const uchar *at;
    ulong next;
    int lines, k_size;
} operand;

/* A thread's pieces of a block: 16 bytes in each of several rows. */
#define ACROSS(transposed)  ((transposed) ? LINES / 8 : BLOCK_K / 8) /* pieces of a row */
#define ROW_OF(transposed)  (get_local_id(0) / ACROSS(transposed))
#define PIECE(transposed)   (get_local_id(0) % ACROSS(transposed))
#define ROWS_ON(transposed) (THREADS / ACROSS(transposed)) /* rows between pieces of a thread */

/* The offset of a row's piece in a block. */
static inline uint offset_in_block(bool transposed, uint row, uint piece) {
    return (row * ACROSS(transposed) + (piece ^ (transposed ? row % 8 : row / 2 % 4))) * 16;
}

/* The first block of an operand, from (row, column) on. */
static inline operand begin_operand(global const uchar *p, ulong next, bool transposed, uint row,
                                    uint column, int lines, int k_size) {
    return (operand){p + (row + ROW_OF(transposed)) * next + column * 2 + PIECE(transposed) * 16,
                     next, lines, k_size};
}

/* The offset of piece i with GLU: 32 gates, their 32 ups, the next 32 gates and their ups. `up`:
 * bytes from a gate to its up. */
static inline ulong gate_or_up(int i, ulong up, ulong next) {
    return i % 2 * up + i / 2 * (RUN == 0 ? 32 : 64) * next;
}

/* Starts the copies of this thread's pieces of a block, and advances to the next block. */
static inline void copy_block(uint to, operand *f, bool transposed, bool gated, ulong up) {
    const int row = ROW_OF(transposed), at = PIECE(transposed) * 8;
    to += offset_in_block(transposed, row, PIECE(transposed));
    UNROLL_FOR(int i = 0; i < BLOCK_BYTES / 16 / THREADS; i++) {
        const int line = gated ? row + i / 2 * 32 : row + i * ROWS_ON(transposed);
        const bool used =
            transposed ? line < f->k_size && at < f->lines : line < f->lines && at < f->k_size;
        copy_16(to + i * THREADS * 16,
                f->at + (gated ? gate_or_up(i, up, f->next) : i * ROWS_ON(transposed) * f->next),
                used);
    }
    f->at += transposed ? BLOCK_K * f->next : BLOCK_K * 2;
    f->k_size -= BLOCK_K;
}

/* Starts the copies of the next block of both operands, if there is one, into a free stage. */
static inline void copy_next(uint stage, operand *a, operand *b, ulong up) {
    if (a->k_size > 0) {
        copy_block(stage, a, TRANSPOSED_A, false, 0);
        copy_block(stage + BLOCK_BYTES, b, TRANSPOSED_B, GLU, up);
    }
    end_copies();
}

/* Waits until the oldest pending block has arrived and no warp reads the block before it. */
static inline void await_block(void) {
    await_copies(STAGES - 2);
    barrier(CLK_LOCAL_MEM_FENCE);
}

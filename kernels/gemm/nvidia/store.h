/*
 * How wgmma.cl and fp8.cl store results. A warp holds the sums of 16 lines as epilogue.h describes.
 * It puts 128 bytes of each line, rounded, into a piece of local memory, and stores the piece in
 * words of 16 bytes, four lines at a time. Required: OUTS, the pieces of a warp; the struct tile,
 * with line, end and column; with GLU, epilogue.h. Optional: ADDS (1: adds float32 results to the
 * old ones).
 */
#ifndef ADDS
#define ADDS 0
#endif
#define PIECE_BYTES MOERT_NVIDIA_PIECE_BYTES

/* Local memory for the pieces of a warp, as a pointer and as an address. */
typedef struct pieces {
    local uchar *at;
    uint address;
} pieces;

/* The matrix in which lines are stored. `as` is OWN_COLUMNS for a matrix with the columns of the
 * tiles, and GATES or UPS for the gates or the ups in v. */
enum { OWN_COLUMNS, GATES, UPS };
typedef struct target {
    global uchar *at;
    ulong stride; /* elements from line to line */
    uint columns; /* columns of the GEMM's result */
    int type, as;
    const ulong *addresses; /* if set, the lines' addresses, instead of `at`; a line with address 0
                               is not stored */
} target;

/* The column of a target that corresponds to a column of the GEMM's result. */
static inline uint column_in(uint column, target to) {
#if GLU
    return to.as == OWN_COLUMNS ? column : column_in_v(column, to.columns, to.as == UPS);
#else
    return column;
#endif
}

/* Bytes in a line of a target from a piece's columns to those of the next piece. */
static inline int step_of(target to) {
#if GLU
    return RUN == 0 || to.as == OWN_COLUMNS ? 128 : 256; /* runs of gates and ups alternate */
#else
    return 128;
#endif
}

/* The offset of a 16-byte word in a piece of 16 lines of 128 bytes. Words that a warp stores or
 * loads at once are in different banks. */
static inline uint word_at(uint line, uint word, int type) {
    return line * 128 + (word ^ (type == IS_F32 ? line % 4 * 2 : line % 8)) * 16;
}

/* Rounds `factor` times the sums of a piece and puts the results into the piece. */
INLINED void put_piece(const float *sum, float factor, int type, pieces piece) {
    const uint lane = LANE;
    if (type == IS_F32) {
        UNROLL_FOR(int j = 0; j < 8; j++)
            *(local float2 *)(piece.at +
                              word_at(lane / 4 + j % 2 * 8, j / 2 * 2 + lane % 4 / 2, type) +
                              lane % 2 * 8) = factor * (float2)(sum[2 * j], sum[2 * j + 1]);
        return;
    }
    UNROLL_FOR(int j = 0; j < 8; j += 2) {
        const float *s = sum + 4 * j;
        uint pairs[4];
        UNROLL_FOR(int i = 0; i < 4; i++)
            pairs[i] = round_pair_as(type == IS_F16, factor * s[2 * i], factor * s[2 * i + 1]);
        store_matrices(piece.address + word_at(lane % 16, j + lane / 16, type),
                       (uint4)(pairs[0], pairs[1], pairs[2], pairs[3]));
    }
}

/* Stores `factor` times columns first to last - 1, multiples of 64, of 16 lines of a warp. */
INLINED void store_lines(const float *sum, float factor, int first, int last, pieces piece, tile t,
                         target to) {
    const int bytes = to.type == IS_F32 ? 4 : 2, width = 128 / bytes;
    const uint lane = LANE, word = lane % 8;
    const int line = t.line + (int)(lane / 8);
    const uint column = t.column + word * (16 / bytes);
    global uchar *lines = to.at + (line * to.stride + column_in(column, to)) * bytes;
    UNROLL_FOR(int i = first / width; i < last / width; i++) {
        const uint at = i % OUTS * PIECE_BYTES;
        sync_warp();
        put_piece(sum + i * (width / 2), factor, to.type,
                  (pieces){piece.at + at, piece.address + at});
        sync_warp();
        UNROLL_FOR(int r = 0; r < 16; r += 4) {
            uint4 value =
                *(local const uint4 *)(piece.at + at + word_at(r + lane / 8, word, to.type));
            if (!(SCATTER ? to.addresses[r / 4] != 0 : line + r < t.end) ||
                column + i * width >= to.columns)
                continue;
            global uchar *start = SCATTER ? (global uchar *)to.addresses[r / 4] + column * bytes
                                          : lines + r * to.stride * bytes;
            global uint4 *result = (global uint4 *)(start + i * step_of(to));
#if ADDS
            value = as_uint4(as_float4(value) + as_float4(*result));
#endif
            *result = value;
        }
    }
}

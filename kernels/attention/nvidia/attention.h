/*
 * Building blocks of the passes of attention.cl (see the picture there). In all functions, lane l
 * of warp w of a consumer holds rows 16 w + l / 4 and 16 w + l / 4 + 8 of the consumer's 64 rows,
 * and columns 2 (l % 4) and 2 (l % 4) + 1 of every 8. Every function is inlined: a call must not
 * move registers that a wgmma in flight uses. Required: KEY_SIZE (64, 128 or 192), VALUE_SIZE (64
 * or 128), BLOCK (64 or 128), F16 (0).
 */
#include "lib/nvidia.h"
#undef SUMS
#undef WGMMA

#define ROWS      MOERT_ATTENTION_BLOCK_ROWS /* rows of a consumer, and of a TMA box */
#define BOX_BYTES 8192                       /* 64 rows of 64 columns */
#define LOG2E     1.44269504088896341f
#define LN2       0.693147180559945309f
#define STEPS(n)  ((n) / 16) /* wgmma along n columns, 16 each */

/* ---- rows in bf16, by TMA ---- */

/* Loads `rows` rows of `width` columns of a head, from row `row` of a sequence on; rows past the
 * sequence's end are zero. The block consists of boxes; each holds 64 columns of all rows. */
INLINED void load_block(uint to, ulong map, int rows, int width, int column, int row, int sequence,
                        uint barrier) {
    UNROLL_FOR(int i = 0; i < width; i += 64)
        UNROLL_FOR(int r = 0; r < rows; r += ROWS)
            load_box(to + (i * rows / ROWS + r) / 64 * BOX_BYTES, map, column + i, row + r,
                     sequence, barrier);
}

/* Copies `bytes` bytes, a multiple of 16, to local memory and counts these bytes at the barrier. */
INLINED void load_bytes(uint to, global const void *from, uint bytes, uint barrier) {
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Returns x, but hides its value from the compiler. So the compiler does not keep values computed
 * from x in registers over a loop, such as the descriptors of all steps of a GEMM. */
INLINED int opaque(int x) {
    __asm__ volatile("" : "+r"(x));
    return x;
}

/* ---- wgmma ---- */

/*
 * A wgmma with N columns has sums in operands %0 to %(N/2 - 1). The first wgmma of a score
 * overwrites the sums (p = 0), so that only wgmma touches their registers. Later wgmma add to the
 * sums (p = 1). The macro RS has the first operand in registers, the macro SS has both operands in
 * local memory.
 */
#define JOINED(a, b) a##b
#define JOIN(a, b)   JOINED(a, b)
#define NAMES_64     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) "%30, %31"
#define NAMES_128    SUMS_TO_63
#define NAMES_192                                                                                  \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) TEN(3) TEN(4) TEN(5) TEN(6) TEN(7)    \
        TEN(8) "%90, %91, %92, %93, %94, %95"
#define RS_64           "{%32, %33, %34, %35}, %36, p, 1, 1, "
#define RS_128          "{%64, %65, %66, %67}, %68, p, 1, 1, "
#define RS_192          "{%96, %97, %98, %99}, %100, p, 1, 1, "
#define SS_64           "%32, %33, p, 1, 1, 0, 0"
#define SS_128          "%64, %65, p, 1, 1, 0, 0"
#define OUT_64(how, s)  LIST_16(how, s, 0), LIST_16(how, s, 16)
#define OUT_128(how, s) LIST_64(how, s)
#define OUT_192(how, s) LIST_64(how, s), LIST_16(how, s, 64), LIST_16(how, s, 80)
#define WGMMA(p, n)                                                                                \
    "{ .reg .pred p; setp.ne.b32 p, " #p                                                           \
    ", 0;\n//@sm_90a wgmma.mma_async.sync.aligned.m64n" TEXT(n) "k16.f32.bf16.bf16 {"
#define WGMMA_RS(p, n, how, s, a, b, transposed)                                                   \
    __asm__ volatile(WGMMA(p, n) JOIN(NAMES_, n) "}, " JOIN(RS_, n) #transposed ";\n}"             \
                     : JOIN(OUT_, n)(how, s)                                                       \
                     : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))
#define WGMMA_SS(p, n, how, s, a, b)                                                               \
    __asm__ volatile(WGMMA(p, n) JOIN(NAMES_, n) "}, " JOIN(SS_, n) ";\n}"                         \
                     : JOIN(OUT_, n)(how, s)                                                       \
                     : "l"(a), "l"(b))

/* Where step i along the columns begins in a block of `rows` rows, in units of 16 bytes: a box has
 * 4 steps of 32 bytes in each row. */
INLINED ulong step_at(int rows, int i) {
    return i / 4 * (rows / ROWS * BOX_BYTES / 16) + i % 4 * 2;
}

/* The descriptor of a block of `rows` rows whose rows run along K. */
INLINED ulong transposed_at(uint address, int rows) {
    return matrix_at(address, 1) + ((ulong)(8 * (rows - ROWS)) << 16);
}

/* Zeroes `sums`. The compiler may not move the stores to a place where a wgmma is in flight. */
INLINED void clear(float *sums, int count) {
    UNROLL_FOR(int i = 0; i < count; i++)
        __asm__ volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[i]));
}

/* score[64,BLOCK] = own rows . rows of a block; asynchronous, like every wgmma */
INLINED void score_gemm_rs(float *score, uint own[][4], int width, uint block) {
    const ulong b = matrix_at(block, 0);
    WGMMA_RS(0, BLOCK, "=f", score, own[0], b, 0);
    UNROLL_FOR(int i = 1; i < STEPS(width); i++)
        WGMMA_RS(1, BLOCK, "+f", score, own[i], b + step_at(BLOCK, i), 0);
}

/* score[64,BLOCK] = own rows . rows of a block, with the own rows in local memory; asynchronous */
INLINED void score_gemm_ss(float *score, uint own, int width, uint block) {
    const ulong a = matrix_at(opaque(own), 0), b = matrix_at(block, 0);
    WGMMA_SS(0, BLOCK, "=f", score, a, b);
    UNROLL_FOR(int i = 1; i < STEPS(width); i++)
        WGMMA_SS(1, BLOCK, "+f", score, a + step_at(ROWS, i), b + step_at(BLOCK, i));
}

/* sums[64,width] += weights[64,BLOCK] . rows of a block */
#define WEIGHTED_SUM(name, width)                                                                  \
    INLINED void name(float *sums, uint weights[][4], uint block) {                                \
        const ulong b = transposed_at(block, BLOCK);                                               \
        UNROLL_FOR(int i = 0; i < STEPS(BLOCK); i++)                                               \
            WGMMA_RS(1, width, "+f", sums, weights[i], b + 128 * i, 1);                            \
    }
WEIGHTED_SUM(sum_keys, KEY_SIZE)
WEIGHTED_SUM(sum_values, VALUE_SIZE)

/* Rounds scores into the register order of the A operand: every 16 columns take four registers of a
 * lane, which hold values of the lane's first, second, first and second row. */
INLINED void round_weights(const float *score, uint weights[][4]) {
    UNROLL_FOR(int i = 0; i < STEPS(BLOCK); i++)
        UNROLL_FOR(int j = 0; j < 4; j++)
            weights[i][j] = round_pair(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
}

/* ---- arithmetic ---- */

INLINED float exp2_of(float x) {
    float y;
    __asm__("ex2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

INLINED float larger(float a, float b) {
    float most;
    __asm__("max.f32 %0, %1, %2;" : "=f"(most) : "f"(a), "f"(b));
    return most;
}

INLINED float log2_of(float x) {
    float y;
    __asm__("lg2.approx.ftz.f32 %0, %1;" : "=f"(y) : "f"(x));
    return y;
}

/* x of the lane whose index differs from this lane's in the bits of `mask`. */
INLINED float shuffle_xor(float x, uint mask) {
    float y;
    __asm__ volatile("shfl.sync.bfly.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=f"(y)
                     : "f"(x), "r"(mask));
    return y;
}

/* Waits for the other warps of this consumer; barrier 0 is the work-group's. */
INLINED void meet_consumer(void) {
    __asm__ volatile("bar.sync %0, 128;" : : "r"((uint)get_local_id(0) / 128) : "memory");
}

INLINED bool any_lane(bool x) {
    uint any;
    __asm__ volatile("{ .reg .pred p, q; setp.ne.u32 p, %1, 0; vote.sync.any.pred q, p, "
                     "0xffffffff; selp.u32 %0, 1, 0, q; }"
                     : "=r"(any)
                     : "r"((uint)x));
    return any != 0;
}

/* Maximum and sum over the 4 lanes that share a row. */
INLINED float row_max(float x) {
    x = larger(x, shuffle_xor(x, 1));
    return larger(x, shuffle_xor(x, 2));
}

INLINED float row_sum(float x) {
    x += shuffle_xor(x, 1);
    return x + shuffle_xor(x, 2);
}

/* ---- rows of this work-item ---- */

/* The first of this work-item's two rows; the other is 8 further. */
INLINED int own_row(void) {
    return get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
}

/* The first of this work-item's two columns among columns 8 j to 8 j + 7. */
INLINED int own_column(int j) {
    return 8 * j + get_local_id(0) % 4 * 2;
}

/* own = x[64,width], which is a block in local memory, in the register order of the A operand */
INLINED void load_own(uint own[][4], int width, uint block) {
    const uint lane = get_local_id(0) % 32, row = get_local_id(0) % 128 / 32 * 16 + lane % 16;
    UNROLL_FOR(int i = 0; i < STEPS(width); i++)
        __asm__ volatile(
            "ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];"
            : "=r"(own[i][0]), "=r"(own[i][1]), "=r"(own[i][2]), "=r"(own[i][3])
            : "r"(block + i / 4 * BOX_BYTES + row * 128 + ((i % 4 * 2 + lane / 16) ^ row % 8) * 16)
            : "memory");
}

/* x[64,width] = factor[row] * sums for `count` rows, `stride` elements apart. Lanes exchange pairs
 * of columns, so that each lane stores 16 bytes at once: of every 16 columns, even lanes store the
 * first 8, odd lanes the last 8. */
INLINED void store_rows_at(const float *sums, int width, const float *factor, int count,
                           global float *x, size_t stride) {
    const int own = opaque(own_row()), lane = opaque(get_local_id(0) % 4);
    const bool odd = lane % 2 != 0;
    x += own * stride + lane % 2 * 8 + lane / 2 * 4;
    UNROLL_FOR(int side = 0; side < 2; side++)
        UNROLL_FOR(int j = 0; j < width / 16; j++) {
            const float *first = sums + 8 * j + 2 * side, *last = first + 4;
            const float2 kept =
                (float2)(odd ? last[0] : first[0], odd ? last[1] : first[1]) * factor[side];
            const float2 sent =
                (float2)(odd ? first[0] : last[0], odd ? first[1] : last[1]) * factor[side];
            const float2 got = (float2)(shuffle_xor(sent.x, 1), shuffle_xor(sent.y, 1));
            if (own + 8 * side < count)
                *(global float4 *)(x + 8 * side * stride + 16 * j) =
                    odd ? (float4)(got, kept) : (float4)(kept, got);
        }
}

/* Exchanges words of two lanes whose index differs in the bits of `mask`. The lane with `upper` set
 * gets the words b of both lanes, the other lane both words a, in the order of the lanes. */
INLINED void exchange(uint *a, uint *b, uint mask, bool upper) {
    const uint got = as_uint(shuffle_xor(as_float(upper ? *a : *b), mask));
    *a = upper ? got : *a;
    *b = upper ? *b : got;
}

/* As store_rows_at, but in bf16: of every 32 columns, lane l of each four lanes stores columns 8 l
 * to 8 l + 7. */
INLINED void store_bf16(const float *sums, int width, const float *factor, int count,
                        global ushort *x, size_t stride) {
    const int own = opaque(own_row()), lane = opaque(get_local_id(0) % 4);
    x += own * stride + 8 * lane;
    UNROLL_FOR(int side = 0; side < 2; side++)
        UNROLL_FOR(int j = 0; j < width / 32; j++) {
            uint w[4];
            UNROLL_FOR(int i = 0; i < 4; i++)
                w[i] = round_pair(factor[side] * sums[16 * j + 4 * i + 2 * side],
                                  factor[side] * sums[16 * j + 4 * i + 2 * side + 1]);
            exchange(&w[0], &w[1], 1, lane % 2 != 0);
            exchange(&w[2], &w[3], 1, lane % 2 != 0);
            exchange(&w[0], &w[2], 2, lane / 2 != 0);
            exchange(&w[1], &w[3], 2, lane / 2 != 0);
            if (own + 8 * side < count)
                *(global uint4 *)(x + 8 * side * stride + 32 * j) = (uint4)(w[0], w[1], w[2], w[3]);
        }
}

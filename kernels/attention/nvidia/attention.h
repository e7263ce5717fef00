/*
 * Building blocks of the passes of attention.cl (see the picture there). In all of them, lane l of
 * warp w of a consumer holds rows 16 w + l / 4 and 16 w + l / 4 + 8 of its 64, and columns 2 (l %
 * 4) and 2 (l % 4) + 1 of every 8. Every function is inlined: a call must not move registers that a
 * wgmma in flight uses. Required: HEAD_SIZE (64 or 128), F16 (0).
 */
#include "lib/nvidia.h"
#undef SUMS
#undef WGMMA

#define ROWS        64
#define BOX_BYTES   8192 /* 64 rows of 64 columns */
#define BLOCK_BYTES (HEAD_SIZE / 64 * BOX_BYTES)
#define STEPS       (HEAD_SIZE / 16) /* wgmma along HEAD_SIZE, 16 columns each */
#define LOG2E       1.44269504088896341f
#define LN2         0.693147180559945309f

/* ---- rows in bf16, by TMA ---- */

/* Loads the block of 64 rows of a head, from row `row` of a sequence on; rows past the sequence's
 * end are zero. */
INLINED void load_block(uint to, ulong map, int column, int row, int sequence, uint barrier) {
    UNROLL_FOR(int i = 0; i < HEAD_SIZE / 64; i++)
        load_box(to + i * BOX_BYTES, map, column + 64 * i, row, sequence, barrier);
}

/* Copies `bytes` bytes, a multiple of 16, to local memory and counts them at the barrier. */
INLINED void load_bytes(uint to, global const void *from, uint bytes, uint barrier) {
    __asm__ volatile(
        "cp.async.bulk.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1], %2, [%3];" ::
            "r"(to),
        "l"(from), "r"(bytes), "r"(barrier)
        : "memory");
}

/* Arrives at the barrier under a predicate; a branch would make the lanes of a warp diverge. */
INLINED void arrive_if(uint barrier, bool condition) {
    __asm__ volatile(
        "{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(
            barrier),
        "r"((uint)condition)
        : "memory");
}

/* ---- wgmma ---- */

/*
 * Operands %0 to %31, or to %63, are the sums. The first wgmma of a score only writes them (p = 0),
 * so that nothing but wgmma touches their registers; the others add to them (p = 1).
 */
#define LIST_32     "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) "%30, %31"
#define SUMS_32(s)  SUMS_16(s, 0), SUMS_16(s, 16)
#define SUMS_64(s)  SUMS_32(s), SUMS_16(s, 32), SUMS_16(s, 48)
#define NEW_4(s, i) "=f"((s)[i]), "=f"((s)[i + 1]), "=f"((s)[i + 2]), "=f"((s)[i + 3])
#define NEW_8(s, i) NEW_4(s, i), NEW_4(s, i + 4)
#define NEW_32(s)   NEW_8(s, 0), NEW_8(s, 8), NEW_8(s, 16), NEW_8(s, 24)
#define WGMMA(p)                                                                                   \
    "{ .reg .pred p; setp.ne.b32 p, " #p ", 0;\n//@sm_90a wgmma.mma_async.sync.aligned.m64n"
#define A_REGISTERS(a) "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3])

/* score[64,64] (+)= a[64,16] b[16,64]: RS has a in registers, SS has both in local memory. */
#define SCORE_RS "64k16.f32.bf16.bf16 {" LIST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 0;\n}"
#define SCORE_SS "64k16.f32.bf16.bf16 {" LIST_32 "}, %32, %33, p, 1, 1, 0, 0;\n}"
/* sums[64,HEAD_SIZE] += a[64,16] b[16,HEAD_SIZE], b transposed. */
#if HEAD_SIZE == 128
#define SUMS(s) SUMS_64(s)
#define WEIGHTED_SUM                                                                               \
    "128k16.f32.bf16.bf16 {" SUMS_TO_63 "}, {%64, %65, %66, %67}, %68, p, 1, 1, 1;\n}"
#else
#define SUMS(s)      SUMS_32(s)
#define WEIGHTED_SUM "64k16.f32.bf16.bf16 {" LIST_32 "}, {%32, %33, %34, %35}, %36, p, 1, 1, 1;\n}"
#endif

/* Where step i along HEAD_SIZE begins in a block, in units of 16 bytes: a box has 4 steps of 32
 * bytes in each row. */
INLINED ulong step_at(int i) {
    return (i / 4) * (BOX_BYTES / 16) + i % 4 * 2;
}

/* Zeroes the sums here; the compiler may not move this to where a wgmma is in flight. */
INLINED void clear(float *sums) {
    UNROLL_FOR(int i = 0; i < HEAD_SIZE / 2; i++)
        __asm__ volatile("mov.f32 %0, 0f00000000;" : "=f"(sums[i]));
}

/* score[64,64] = own rows . rows of a block; asynchronous, like every wgmma */
INLINED void score_gemm_rs(float *score, uint own[STEPS][4], uint block) {
    const ulong b = matrix_at(block, 0);
    __asm__ volatile(WGMMA(0) SCORE_RS : NEW_32(score) : A_REGISTERS(own[0]), "l"(b));
    UNROLL_FOR(int i = 1; i < STEPS; i++)
        __asm__ volatile(WGMMA(1) SCORE_RS
                         : SUMS_32(score)
                         : A_REGISTERS(own[i]), "l"(b + step_at(i)));
}

/* score[64,64] = own rows . rows of a block, with the own rows in local memory; asynchronous */
INLINED void score_gemm_ss(float *score, uint own, uint block) {
    const ulong a = matrix_at(own, 0), b = matrix_at(block, 0);
    __asm__ volatile(WGMMA(0) SCORE_SS : NEW_32(score) : "l"(a), "l"(b));
    UNROLL_FOR(int i = 1; i < STEPS; i++)
        __asm__ volatile(WGMMA(1) SCORE_SS
                         : SUMS_32(score)
                         : "l"(a + step_at(i)), "l"(b + step_at(i)));
}

/* sums[64,HEAD_SIZE] += weights[64,64] . rows of a block */
INLINED void weighted_sum(float *sums, uint weights[4][4], uint block) {
    const ulong b = matrix_at(block, 1);
    UNROLL_FOR(int i = 0; i < 4; i++)
        __asm__ volatile(WGMMA(1) WEIGHTED_SUM
                         : SUMS(sums)
                         : A_REGISTERS(weights[i]), "l"(b + 128 * i));
}

/* Rounds scores into the register order of the A operand: each 16 columns take four registers, for
 * rows 0, 8, 0 and 8 of the lane. */
INLINED void round_weights(const float *score, uint weights[4][4]) {
    UNROLL_FOR(int i = 0; i < 4; i++)
        UNROLL_FOR(int j = 0; j < 4; j++)
            weights[i][j] = round_pair(score[8 * i + 2 * j], score[8 * i + 2 * j + 1]);
}

/* ---- rows of this work-item ---- */

/* x, opaque to the compiler, so that it does not keep values computed from x in registers over a
 * loop. */
INLINED int opaque(int x) {
    __asm__ volatile("" : "+r"(x));
    return x;
}

/* The first of this work-item's two rows; the other is 8 further. */
INLINED int own_row(void) {
    return get_local_id(0) % 128 / 32 * 16 + get_local_id(0) % 32 / 4;
}

/* The first of this work-item's two columns among columns 8 j to 8 j + 7. */
INLINED int own_column(int j) {
    return 8 * j + get_local_id(0) % 4 * 2;
}

/* own = bf16(factor * x[64,HEAD_SIZE]) in the register order of the A operand; rows from `count` on
 * are zero. */
INLINED void load_rows(uint own[STEPS][4], global const float *x, size_t stride, int count,
                       float factor) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        UNROLL_FOR(int j = 0; j < 4; j++) {
            const int row = own_row() + j % 2 * 8, column = 16 * i + own_column(j / 2);
            const float2 pair = row < count ? *(global const float2 *)(x + row * stride + column)
                                            : (float2)(0.0f, 0.0f);
            own[i][j] = round_pair(factor * pair.x, factor * pair.y);
        }
}

/* x[64,HEAD_SIZE] = factor[row] * sums for `count` rows, `stride` elements apart, in float32 or in
 * bf16 */
#define STORE_ROWS(name, type, two, make_two)                                                      \
    INLINED void name(const float *sums, const float *factor, int count, global type *x,           \
                      size_t stride) {                                                             \
        const int own = opaque(own_row());                                                         \
        x += own * stride + own_column(0);                                                         \
        UNROLL_FOR(int side = 0; side < 2; side++)                                                 \
            UNROLL_FOR(int j = 0; j < HEAD_SIZE / 8; j++)                                          \
                if (own + 8 * side < count)                                                        \
                    *(global two *)(x + 8 * side * stride + 8 * j) =                               \
                        make_two(factor[side] * sums[4 * j + 2 * side],                            \
                                 factor[side] * sums[4 * j + 2 * side + 1]);                       \
    }
STORE_ROWS(store_rows_at, float, float2, (float2))
STORE_ROWS(store_bf16, ushort, uint, round_pair)

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

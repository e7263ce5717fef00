/*
 * Causal attention on the tensor cores of sm_90 (Hopper): the formulas of attention.cl on factors rounded to bf16, with
 * float32 sums. Scores are in units of log 2: q is rounded times scale / log 2, so that p = 2^(score - maximum).
 *
 *                 64 rows of a block         A work-group owns 128 rows of a head of a sequence: queries in FORWARD and
 *               +--------------------+       BACKWARD_Q, keys in BACKWARD_KV. Warps 4-7 and 8-11, its consumers, have 64
 *   64 own rows | score, p, dp or ds |       of them each and pass over the other side in blocks of 64 rows, which one
 *               +--------------------+       thread of warps 0-3 brings by TMA into a ring of stages, as far ahead as
 *   64 own rows | sums, HEAD_SIZE    |       there is room. A product is four or eight wgmma, its results are registers;
 *               +--------------------+       those of a score are, rounded, the first factor of the next product.
 *
 *   FORWARD      stages K, V, K, V ..:  out += p V of a block runs beside score = q K' of the next one and its softmax
 *   BACKWARD_Q   stages K, V, K, V ..:  dq += ds K beside q K' and dout V' of the next block
 *   BACKWARD_KV  stages of Q, dout and 64 lse and delta, for all heads of a group in order:  dv += p dout and dk += ds Q
 *
 * `rows` is the tensor [sequences, length, columns] of bf16 that attention_round.cl makes: k and v of all heads side by
 * side, then q and dout. Rows past a sequence's end are zero. Its stats [sequences,heads,blocks,2,64] are lse / log 2
 * and delta.
 * Local memory: ARENA bytes (227 KiB less 1 KiB, see src/device/ptx.c). Work-groups of 384.
 * Deterministic: no tile depends on another, blocks are summed in order; a sequence's result depends on it alone.
 * Required: PASS (0 to 2 as above), HEAD_SIZE (64 or 128), ARENA.
 */
#if !defined(PASS) || !defined(HEAD_SIZE)
#error "PASS and HEAD_SIZE must be defined"
#endif
#define F16 0
#include "nvidia_attention.h"

#define FORWARD     0
#define BACKWARD_Q  1
#define BACKWARD_KV 2

#define OWN 128
#if PASS == BACKWARD_KV
#define STAGES      4
#define STAGE_BYTES (2 * BLOCK_BYTES)
#define KEPT_BYTES  (4 * BLOCK_BYTES) /* k, then v, of the own rows */
#else
#define STAGES      8
#define STAGE_BYTES BLOCK_BYTES
#define KEPT_BYTES  0
#endif
/* Offsets in the arena. */
#define STAGES_AT KEPT_BYTES
#define STATS_AT  (STAGES_AT + STAGES * STAGE_BYTES)
#define FULL_AT   (STATS_AT + STAGES * 512)
#define EMPTY_AT  (FULL_AT + 8 * STAGES)
#define KEPT_AT   (EMPTY_AT + 8 * STAGES)

/* What a work-group owns: rows from `first` on of a head, or of keys and values' head, of a sequence. */
typedef struct place {
    int length, heads, kv_heads, sequence, head, first;
} place;

/* x[64,HEAD_SIZE] = factor[row] * sums, from position `first` on, of a tensor with so many heads. */
INLINE void store_rows(const float *sums, const float *factor, place at, int first, int heads, global float *x)
{
    const size_t stride = heads * HEAD_SIZE;
    x += ((size_t)at.sequence * at.length + first) * stride + at.head * HEAD_SIZE;
    store_rows_at(sums, factor, at.length - first, x, stride);
}

INLINE uint stage_at(uint base, uint step)
{
    return base + STAGES_AT + step % STAGES * STAGE_BYTES;
}

INLINE void await_full(uint base, uint step)
{
    await(base + FULL_AT + 8 * (step % STAGES), step / STAGES);
}

/* Gives the stage of a step back; the warps of a consumer run products together. */
INLINE void give_back(uint base, uint step)
{
    if (get_local_id(0) % 128 == 0)
        arrive(base + EMPTY_AT + 8 * (step % STAGES));
}

/* The barrier that the next step's loads count at, once its stage is free. */
INLINE uint claim_stage(uint base, uint step, uint bytes)
{
    if (step >= STAGES)
        await(base + EMPTY_AT + 8 * (step % STAGES), step / STAGES - 1);
    const uint full = base + FULL_AT + 8 * (step % STAGES);
    expect(full, bytes);
    return full;
}

/* How many blocks there are, and how many of them are before the end of the 64 rows from `first` on. */
INLINE int blocks_of(int length)
{
    return (length + ROWS - 1) / ROWS;
}

INLINE int blocks_until(place at, int first)
{
    return min(blocks_of(at.length), first / ROWS + 1);
}

#if PASS != BACKWARD_KV
INLINE void produce(place at, ulong map, uint base)
{
    const int blocks = blocks_until(at, at.first + ROWS), kv_head = at.head / (at.heads / at.kv_heads);
    ROLLED for (int step = 0; step < 2 * blocks; step++) {
        const uint full = claim_stage(base, step, BLOCK_BYTES);
        load_block(stage_at(base, step), map, (step % 2 * at.kv_heads + kv_head) * HEAD_SIZE, step / 2 * ROWS, at.sequence,
                   full);
    }
}
#endif

#if PASS != BACKWARD_KV
/* Scores of later keys than the query, where the own rows are those of the block. */
INLINE void hide_later(float *score)
{
    UNROLL for (int i = 0; i < 32; i++)
        if (own_column(i / 4) + i % 2 > own_row() + i / 2 % 2 * 8)
            score[i] = -INFINITY;
}
#endif

#if PASS == FORWARD
/* Scores to weights relative to the running maximum; *keep is the factor of all earlier ones. `diagonal`: own rows are
 * the block's. */
INLINE void softmax_block(float *score, bool diagonal, float *maximum, float *total, float *keep)
{
    if (diagonal)
        hide_later(score);
    UNROLL for (int side = 0; side < 2; side++) {
        float highest = maximum[side], sum = 0.0f;
        UNROLL for (int j = 0; j < 16; j++)
            highest = larger(highest, score[j / 2 * 4 + 2 * side + j % 2]);
        highest = row_max(highest);
        UNROLL for (int j = 0; j < 16; j++) {
            float *s = score + j / 2 * 4 + 2 * side + j % 2;
            *s = exp2_of(*s - highest);
            sum += *s;
        }
        keep[side] = exp2_of(maximum[side] - highest);
        total[side] = fma(total[side], keep[side], sum);
        maximum[side] = highest;
    }
}

INLINE void consume(place at, uint base, float scale, global const float *q, global float *out, global float *lse)
{
    const int first = at.first + (get_local_id(0) / 128 - 1) * ROWS, blocks = blocks_until(at, first);
    const int count = at.length - first;
    const size_t stride = at.heads * HEAD_SIZE, row = (size_t)at.sequence * at.length + first;
    const size_t from = row * stride + at.head * HEAD_SIZE;
    float maximum[2] = {-INFINITY, -INFINITY}, total[2] = {0.0f, 0.0f}, keep[2], sums[HEAD_SIZE / 2], score[32];
    uint own[STEPS][4], weights[4][4];
    load_rows(own, q + from, stride, count, scale * LOG2E);
    UNROLL for (int i = 0; i < HEAD_SIZE / 2; i++)
        sums[i] = 0.0f;
    await_full(base, 0);
    wgmma_fence();
    products(score, own, stage_at(base, 0));
    wgmma_commit();
    wgmma_wait(0);
    give_back(base, 0);
    softmax_block(score, first == 0, maximum, total, keep);
    round_weights(score, weights);
    for (int block = 1; block < blocks; block++) {
        const int k = 2 * block, v = k - 1;
        await_full(base, v);
        await_full(base, k);
        wgmma_fence();
        products(score, own, stage_at(base, k));
        wgmma_commit();
        gather(sums, weights, stage_at(base, v));
        wgmma_commit();
        wgmma_wait(1);
        give_back(base, k);
        softmax_block(score, block * ROWS == first, maximum, total, keep);
        wgmma_wait(0);
        give_back(base, v);
        round_weights(score, weights);
        UNROLL for (int i = 0; i < HEAD_SIZE / 2; i++)
            sums[i] *= keep[i / 2 % 2];
    }
    await_full(base, 2 * blocks - 1);
    wgmma_fence();
    gather(sums, weights, stage_at(base, 2 * blocks - 1));
    wgmma_commit();
    wgmma_wait(0);
    UNROLL for (int side = 0; side < 2; side++) {
        const float all = row_sum(total[side]);
        const int own_side = own_row() + 8 * side;
        if (own_side < count && get_local_id(0) % 4 == 0)
            lse[(row + own_side) * at.heads + at.head] = LN2 * (maximum[side] + log2_of(all));
        keep[side] = 1.0f / all;
    }
    store_rows(sums, keep, at, first, at.heads, out);
}

#elif PASS == BACKWARD_Q
/* Scores to probabilities by the own rows' lse. `diagonal`: own rows are the block's. */
INLINE void exponentiate(float *score, bool diagonal, const float *normaliser)
{
    if (diagonal)
        hide_later(score);
    UNROLL for (int i = 0; i < 32; i++)
        score[i] = exp2_of(score[i] - normaliser[i / 2 % 2]);
}

INLINE void consume(place at, uint base, float scale, global const float *q, global const float *dout,
                           global const float *stats, global float *dq)
{
    const int first = at.first + (get_local_id(0) / 128 - 1) * ROWS, blocks = blocks_until(at, first);
    const int count = at.length - first, all = blocks_of(at.length);
    const size_t stride = at.heads * HEAD_SIZE;
    const size_t from = ((size_t)at.sequence * at.length + first) * stride + at.head * HEAD_SIZE;
    float normaliser[2], delta[2], sums[HEAD_SIZE / 2], score[32], dscore[32];
    uint own[STEPS][4], down[STEPS][4], weights[4][4];
    stats += (((size_t)at.sequence * at.heads + at.head) * all + min(first / ROWS, all - 1)) * 2 * ROWS + own_row();
    UNROLL for (int side = 0; side < 2; side++) {
        normaliser[side] = stats[8 * side];
        delta[side] = stats[ROWS + 8 * side];
    }
    load_rows(own, q + from, stride, count, scale * LOG2E);
    load_rows(down, dout + from, stride, count, 1.0f);
    UNROLL for (int i = 0; i < HEAD_SIZE / 2; i++)
        sums[i] = 0.0f;
    for (int block = 0; block < blocks; block++) {
        const int k = 2 * block, v = k + 1;
        await_full(base, k);
        await_full(base, v);
        wgmma_fence();
        products(score, own, stage_at(base, k));
        wgmma_commit();
        products(dscore, down, stage_at(base, v));
        wgmma_commit();
        wgmma_wait(1); /* for score, and so for the sum over the block before this one */
        if (block > 0)
            give_back(base, k - 2);
        exponentiate(score, block * ROWS == first, normaliser);
        wgmma_wait(0);
        give_back(base, v);
        UNROLL for (int i = 0; i < 32; i++)
            score[i] *= dscore[i] - delta[i / 2 % 2];
        round_weights(score, weights);
        wgmma_fence();
        gather(sums, weights, stage_at(base, k));
        wgmma_commit();
    }
    wgmma_wait(0);
    const float factor[2] = {scale, scale};
    store_rows(sums, factor, at, anew(first), at.heads, dq);
}

#else
/* Queries from the first that sees a key on, for each head of the group. */
INLINE void produce(place at, ulong map, global const float *stats, uint base)
{
    const int blocks = blocks_of(at.length), group = at.heads / at.kv_heads, q_column = 2 * at.kv_heads;
    const uint kept = base + KEPT_AT;
    expect(kept, KEPT_BYTES);
    for (int i = 0; i < 4; i++)
        load_block(base + i * BLOCK_BYTES, map, (i / 2 * at.kv_heads + at.head) * HEAD_SIZE, at.first + i % 2 * ROWS,
                   at.sequence, kept);
    for (int head = at.head * group, step = 0; head < (at.head + 1) * group; head++)
        ROLLED for (int block = at.first / ROWS; block < blocks; block++, step++) {
            const uint full = claim_stage(base, step, STAGE_BYTES + 512), to = stage_at(base, step);
            load_block(to, map, (q_column + head) * HEAD_SIZE, block * ROWS, at.sequence, full);
            load_block(to + BLOCK_BYTES, map, (q_column + at.heads + head) * HEAD_SIZE, block * ROWS, at.sequence, full);
            load_bytes(base + STATS_AT + step % STAGES * 512,
                       stats + (((size_t)at.sequence * at.heads + head) * blocks + block) * 2 * ROWS, 512, full);
        }
}

/* Scores of keys by queries to probabilities. `ahead`: how far the first key is from the first query. */
INLINE void exponentiate(float *score, local const float *normaliser, int ahead)
{
    if (ahead >= 0)
        UNROLL for (int i = 0; i < 32; i++)
            if (ahead + own_row() + i / 2 % 2 * 8 > own_column(i / 4) + i % 2)
                score[i] = -INFINITY;
    UNROLL for (int j = 0; j < 8; j++) {
        const float2 of = *(local const float2 *)(normaliser + own_column(j));
        UNROLL for (int i = 0; i < 4; i++)
            score[4 * j + i] = exp2_of(score[4 * j + i] - (i % 2 ? of.y : of.x));
    }
}

/* Those, in `score`, to ds. */
INLINE void differentiate(float *score, const float *dscore, local const float *delta)
{
    UNROLL for (int j = 0; j < 8; j++) {
        const float2 of = *(local const float2 *)(delta + own_column(j));
        UNROLL for (int i = 0; i < 4; i++)
            score[4 * j + i] *= dscore[4 * j + i] - (i % 2 ? of.y : of.x);
    }
}

INLINE void consume(place at, uint base, local const uchar *arena, float scale, global float *dk, global float *dv)
{
    const int consumer = get_local_id(0) / 128 - 1, first = at.first + consumer * ROWS;
    const int blocks = blocks_of(at.length) - at.first / ROWS, steps = blocks * (at.heads / at.kv_heads);
    const uint k = base + consumer * BLOCK_BYTES, v = k + 2 * BLOCK_BYTES;
    float dksums[HEAD_SIZE / 2], dvsums[HEAD_SIZE / 2], score[32], dscore[32];
    uint weights[4][4], dweights[4][4];
    UNROLL for (int i = 0; i < HEAD_SIZE / 2; i++)
        dksums[i] = dvsums[i] = 0.0f;
    await(base + KEPT_AT, 0);
    int step = 0, block = 0; /* of the head's */
    do { /* there is a step: a way around would have ptxas put a wait behind every wgmma */
        const uint q = stage_at(base, step), dout = q + BLOCK_BYTES;
        local const float *stats = (local const float *)(arena + STATS_AT + step % STAGES * 512);
        await_full(base, step);
        wgmma_wait(1); /* for the last sum of dv, whose weights' registers are needed */
        wgmma_fence();
        products_of(score, k, q);
        wgmma_commit();
        products_of(dscore, v, dout);
        wgmma_commit();
        wgmma_wait(1); /* for score, and so for the last sum of dk */
        if (step > 0)
            give_back(base, step - 1);
        exponentiate(score, stats, (consumer - block) * ROWS);
        round_weights(score, weights);
        wgmma_fence();
        gather(dvsums, weights, dout);
        wgmma_commit();
        wgmma_wait(1); /* for dscore */
        differentiate(score, dscore, stats + ROWS);
        round_weights(score, dweights);
        wgmma_fence();
        gather(dksums, dweights, q);
        wgmma_commit();
        block = block + 1 < blocks ? block + 1 : 0;
    } while (++step < steps);
    wgmma_wait(0);
    const float factor[2] = {LN2, LN2}, one[2] = {1.0f, 1.0f}; /* q was rounded times scale / log 2 */
    store_rows(dksums, factor, at, anew(first), at.kv_heads, dk);
    store_rows(dvsums, one, at, anew(first), at.kv_heads, dv);
}
#endif

/* Grid: {heads or kv_heads, sequences, blocks of OWN rows}, those with the most work first. */
kernel __attribute__((reqd_work_group_size(384, 1, 1)))
void nvidia_attention(tensor_map rows, int length, int heads, int kv_heads, float scale, global const float *q,
                      global const float *dout, global const float *scratch, ulong stats_at, global float *result,
                      global float *other)
{
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const int tile = PASS == BACKWARD_KV ? get_group_id(2) : get_num_groups(2) - 1 - get_group_id(2);
    const place at = {length, heads, kv_heads, get_group_id(1), get_group_id(0), tile * OWN};
    if (thread == 0) {
        for (int i = 0; i < STAGES; i++) {
            begin_barrier(base + FULL_AT + 8 * i, 1);
            begin_barrier(base + EMPTY_AT + 8 * i, 2);
        }
        begin_barrier(base + KEPT_AT, 1);
        fence_barriers();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(24);
#if PASS == BACKWARD_KV
        if (thread == 0)
            produce(at, MAP_ADDRESS(nvidia_attention, 0), scratch + stats_at, base);
    } else {
        claim_registers(240);
        consume(at, base, arena, scale, result, other);
    }
#else
        if (thread == 0)
            produce(at, MAP_ADDRESS(nvidia_attention, 0), base);
    } else {
        claim_registers(240);
#if PASS == FORWARD
        consume(at, base, scale, q, result, other);
#else
        consume(at, base, scale, q, dout, scratch + stats_at, result);
#endif
    }
#endif
}

/*
 * Causal attention on the tensor cores of sm_90 (Hopper): the formulas of attention/attention.cl on
 * operands rounded to bf16, with float32 sums. Scores are in units of log 2: q is multiplied by
 * scale / log 2 before it is rounded, so that p = 2^(score - maximum).
 *
 * A work-group owns 128 rows of a head of a sequence: queries in FORWARD and BACKWARD_Q, keys in
 * BACKWARD_KV. Two consumers, warps 4-7 and 8-11, own 64 of these rows each. They pass over the
 * keys (BACKWARD_KV: the queries) in blocks of 64 rows. One thread of warps 0-3, the producer,
 * loads these blocks by TMA into a ring of stages, as far ahead as the ring allows:
 *
 *                 64 rows of a block
 *               +--------------------+
 *   64 own rows | score, p, dp or ds |
 *               +--------------------+
 *   64 own rows | sums, HEAD_SIZE    |
 *               +--------------------+
 *
 * A GEMM of a block is four or eight wgmma with results in registers. Scores, rounded to bf16, are
 * the A operand of the next GEMM without leaving their registers.
 *
 *   FORWARD      stages K, V, K, V ..: out += p V of a block overlaps score = q K' and the softmax
 *                of the next block
 *   BACKWARD_Q   stages K, V, K, V ..: dq += ds K of a block overlaps q K' and dout V' of the next
 *   BACKWARD_KV  each stage holds 64 rows of q and dout, their lse and delta, for all heads of a
 *                group in order: dv += p dout and dk += ds q
 *
 * If WINDOW is 1, a query sees only the `window` keys up to its own, and blocks that no own row
 * sees are left out.
 *
 * If each sequence is several documents, work-groups own rows of a document, whose positions count
 * from its start; other rows of the sequence that a block holds are masked or not stored.
 *
 * `rows` is the bf16 tensor [sequences, length, columns] that attention/round.cl writes: k of all
 * heads, v of all heads and, for the backward passes, q and dout of all heads. TMA reads rows past
 * a sequence's end as zeros. The stats [slots,heads,2,64], a slot for each block of a document, are
 * lse / log 2, infinite past the document's end, and delta.
 *
 * Required: PASS (0 FORWARD, 1 BACKWARD_Q, 2 BACKWARD_KV), HEAD_SIZE (64 or 128), WINDOW, ARENA.
 * Local memory: ARENA bytes (227 KiB less 1 KiB, see src/device/nvidia/ptx.c). Work-groups of 384
 * items. Deterministic: no tile depends on another, and blocks are summed in order, so a document's
 * result depends on that document alone.
 */
#if !defined(PASS) || !defined(HEAD_SIZE) || !defined(WINDOW)
#error "PASS, HEAD_SIZE and WINDOW must be defined"
#endif
#define F16 0
#include "args/attention.h"
#include "attention/nvidia/attention.h"

#define FORWARD     0
#define BACKWARD_Q  1
#define BACKWARD_KV 2

#define OWN 128
#if PASS == BACKWARD_KV
#define STAGES      4
#define STAGE_BYTES (2 * BLOCK_BYTES)
#else
#define STAGES      8
#define STAGE_BYTES BLOCK_BYTES
#endif
#define KEPT_BYTES                                                                                 \
    (PASS == FORWARD ? 0 : 4 * BLOCK_BYTES) /* the own rows of q and dout, or of k and v */
/* Byte offsets in the arena. */
#define STAGES_AT KEPT_BYTES
#define STATS_AT  (STAGES_AT + STAGES * STAGE_BYTES)
#define FULL_AT   (STATS_AT + STAGES * 512)
#define EMPTY_AT  (FULL_AT + 8 * STAGES)
#define KEPT_AT   (EMPTY_AT + 8 * STAGES)

/* The OWN rows of a work-group: those from position `first` on, of one head (in BACKWARD_KV a head
 * of keys and values) of one document, which begins at row `offset` of its sequence. */
typedef struct place {
    int length, heads, kv_heads, window, sequence, offset, head, first;
    int slot;     /* of the stats of the document's first block */
    size_t token; /* the document's first one */
} place;

/* The kernel's operands and results. */
typedef struct tensors {
    float scale;
    global const float *q, *stats; /* q: only in FORWARD */
    global const float *sinks;     /* [heads], only in FORWARD, or null */
    global float *result, *other;  /* by PASS: out and lse; dq and null; dk and dv */
    global ushort *out_bf16;       /* FORWARD: out rounded to bf16, or null */
} tensors;

/* x[64,HEAD_SIZE] = factor[row] * sums, from position `first` on; x has `heads` heads. */
INLINED void store_rows(const float *sums, const float *factor, place at, int first, int heads,
                        global float *x) {
    const size_t stride = heads * HEAD_SIZE;
    x += (at.token + first) * stride + at.head * HEAD_SIZE;
    store_rows_at(sums, factor, at.length - first, x, stride);
}

INLINED uint stage_at(uint base, uint step) {
    return base + STAGES_AT + step % STAGES * STAGE_BYTES;
}

INLINED void await_full(uint base, uint step) {
    await(base + FULL_AT + 8 * (step % STAGES), step / STAGES);
}

/* Hands the stage of a step back to the producer. One thread arrives for all four warps of a
 * consumer, since they run each wgmma together. */
INLINED void release_stage(uint base, uint step) {
    arrive_if(base + EMPTY_AT + 8 * (step % STAGES), get_local_id(0) % 128 == 0);
}

/* Waits until the stage of `step` is free, and returns the barrier at which its loads count their
 * `bytes`. */
INLINED uint claim_stage(uint base, uint step, uint bytes) {
    if (step >= STAGES)
        await(base + EMPTY_AT + 8 * (step % STAGES), step / STAGES - 1);
    const uint full = base + FULL_AT + 8 * (step % STAGES);
    expect(full, bytes);
    return full;
}

/* The number of blocks of 64 rows in a document. */
INLINED int blocks_of(int length) {
    return (length + ROWS - 1) / ROWS;
}

/* The number of blocks up to the end of the 64 rows from `first` on. */
INLINED int blocks_until(place at, int first) {
    return min(blocks_of(at.length), first / ROWS + 1);
}

/* The first block with keys that the queries from `first` on see. */
INLINED int first_block(place at, int first) {
    return WINDOW ? min(max(first - at.window + 1, 0) / ROWS, blocks_of(at.length) - 1) : 0;
}

/* Masks the scores of the keys that a query does not see. The block's first query is `ahead`
 * positions after its first key; its positions are the own rows' if that is 0. In BACKWARD_KV the
 * own rows are keys. */
INLINED void mask_unseen(float *score, int ahead, int window) {
    if (ahead > 0 ? (WINDOW ? ahead + ROWS <= window : true) : false)
        return; /* all keys are seen */
    const int apart = PASS == BACKWARD_KV ? ahead : WINDOW ? ahead : 0;
    UNROLL_FOR(int i = 0; i < 32; i++) {
        const int own = own_row() + i / 2 % 2 * 8, other = own_column(i / 4) + i % 2;
        const int distance = PASS == BACKWARD_KV ? apart + other - own : apart + own - other;
        if (WINDOW ? (uint)distance >= (uint)window : distance < 0)
            score[i] = -INFINITY;
    }
}

/* Loads the own rows of the two tensors whose head begins at `column` and at `next_column`. */
INLINED void load_kept(place at, ulong map, uint base, int column, int next_column) {
    expect(base + KEPT_AT, KEPT_BYTES);
    for (int i = 0; i < 4; i++)
        load_block(base + i * BLOCK_BYTES, map, i < 2 ? column : next_column,
                   at.offset + at.first + i % 2 * ROWS, at.sequence, base + KEPT_AT);
}

/* The stats of a head's queries in a block of the document. */
INLINED global const float *stats_of(place at, tensors t, int head, int block) {
    return t.stats + ((size_t)(at.slot + block) * at.heads + head) * 2 * ROWS;
}

#if PASS == BACKWARD_KV
#include "attention/nvidia/kv.h"
#else
#include "attention/nvidia/q.h"
#endif

/* The rows of tile number `tile`. Tiles of whole sequences with the most work come first. `blocks`:
 * those of OWN rows of all documents, or null. */
INLINED place place_of(int tile, moert_nvidia_attention_args args,
                       global const moert_attention_block *blocks) {
    const int each = PASS == BACKWARD_KV ? args.kv_heads : args.heads, index = tile / each;
    place at = {args.length, args.heads, args.kv_heads, args.window, 0, 0, tile % each, 0, 0, 0};
    if (blocks != 0) {
        const moert_attention_block b = blocks[index];
        at.length = b.length;
        at.sequence = (int)(b.token / args.length);
        at.offset = (int)(b.token % args.length);
        at.first = b.first;
        at.slot = b.slot;
        at.token = b.token;
    } else {
        const int nth = index / args.sequences;
        at.sequence = index % args.sequences;
        at.first = (PASS == BACKWARD_KV ? nth : (args.length + OWN - 1) / OWN - 1 - nth) * OWN;
        at.slot = at.sequence * blocks_of(args.length);
        at.token = (size_t)at.sequence * args.length;
    }
    return at;
}

#if PASS == FORWARD
#define NEXT(tile) (tile + (int)get_num_groups(0))
#else
#define NEXT(tile) args.tiles /* ends the loop: one tile per work-group */
#endif

/* Grid: {`tiles`}, which is (kv_)heads * blocks of OWN rows of all documents; in FORWARD it may be
 * less, and each work-group then computes several tiles. */
kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_attention(
    tensor_map rows, global const float *q, global const float *scratch, global float *result,
    global float *other, global ushort *out_bf16, global const float *sinks,
    global const moert_attention_block *blocks, moert_nvidia_attention_args args) {
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const tensors t = {args.scale, q, scratch + args.stats_at, sinks, result, other, out_bf16};
    uint step = 0;
    if (thread == 0) {
        begin_ring(base + FULL_AT, base + EMPTY_AT, STAGES, 1, 2);
        begin_barrier(base + KEPT_AT, 1);
        fence_barriers();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
    if (thread < 128) {
        release_registers(24);
        if (thread == 0)
            for (int tile = get_group_id(0); tile < args.tiles; tile = NEXT(tile))
                step = produce(place_of(tile, args, blocks), t, MAP_ADDRESS(nvidia_attention, 0),
                               base, step);
    } else {
        claim_registers(240);
        for (int tile = get_group_id(0); tile < args.tiles; tile = NEXT(tile))
            step = consume(place_of(tile, args, blocks), t, base, arena, step);
    }
}

/*
 * Causal attention on the tensor cores of sm_90 (Hopper): the formulas of attention/attention.cl on
 * bf16 operands, with float32 sums. `factor` is scale / log 2, so that
 * p = 2^(factor * score - maximum).
 *
 * A tile is 128 rows of a head of a sequence: queries in FORWARD and BACKWARD_Q, keys in
 * BACKWARD_KV. Two consumers, warps 4-7 and 8-11 of a work-group, own 64 of these rows each. The
 * consumers pass over the keys (BACKWARD_KV: the queries) in blocks of 64 rows, or of 128 in
 * FORWARD if KEY_SIZE is at most 128. One thread of warps 0-3, the producer, loads these blocks by
 * TMA into a ring of stages, as far ahead as the ring allows:
 *
 *                 64 rows of a block
 *               +--------------------+
 *   64 own rows | score, p, dp or ds |
 *               +--------------------+
 *   64 own rows | sums, a head wide  |
 *               +--------------------+
 *
 * A GEMM of a block is 4 to 12 wgmma with results in registers. Scores, rounded to bf16, are the A
 * operand of the next GEMM without leaving their registers.
 *
 *   FORWARD      stages K, V, K, V .., the last keys first: out += p V of a block overlaps score =
 *                q K' and the softmax of the next block. Work-groups take tiles from a counter. A
 *                second thread of warps 0-3 takes the tiles and loads q one tile ahead; the first
 *                score of a tile overlaps the end of the tile before.
 *   BACKWARD_Q   stages K, V, K, V ..: dq += ds K of a block overlaps q K' and dout V' of the next
 *   BACKWARD_KV  each stage holds 64 rows of q and dout, their lse and delta, for all heads of a
 *                group in order: dv += p dout and dk += ds q
 *
 * If WINDOW is 1, a query sees only the `window` keys up to its own position. Blocks that no own
 * row sees are skipped.
 *
 * If a sequence has several documents, a tile has rows of one document, and positions count from
 * the start of that document. Rows of other documents that a block holds are masked or not stored.
 *
 * q, k, v and, in the backward passes, dout are bf16 tensors [sequences, length, heads * head's
 * elements]. TMA reads rows past a sequence's end as zeros. attention/stats.cl writes the stats
 * [slots,heads,2,64], a slot for each block of a document: lse / log 2, infinite past the
 * document's end, and delta.
 *
 * Required: PASS (0 FORWARD, 1 BACKWARD_Q, 2 BACKWARD_KV), KEY_SIZE and VALUE_SIZE (64 and 64, 128
 * and 128, or 192 and 128), WINDOW, ARENA.
 * Local memory: ARENA bytes (227 KiB less 1 KiB, see src/device/nvidia/ptx.c). Work-groups of 384
 * items. Deterministic: no tile depends on another, and blocks are summed in order, so a document's
 * result depends on that document alone.
 */
#if !defined(PASS) || !defined(KEY_SIZE) || !defined(VALUE_SIZE) || !defined(WINDOW)
#error "PASS, KEY_SIZE, VALUE_SIZE and WINDOW must be defined"
#endif
#define F16         0
#define FORWARD     0
#define BACKWARD_Q  1
#define BACKWARD_KV 2
#if PASS == FORWARD && KEY_SIZE <= 128
#define BLOCK 128 /* rows */
#else
#define BLOCK 64
#endif
#if PASS == FORWARD
#define PRODUCER_REGISTERS 40
#define CONSUMER_REGISTERS 232
#else
#define PRODUCER_REGISTERS 24
#define CONSUMER_REGISTERS 240
#endif
#include "args/attention.h"
#include "attention/nvidia/attention.h"

#define OWN           MOERT_ATTENTION_OWN_ROWS
#define KEY_BYTES     (BLOCK * KEY_SIZE * 2)
#define VALUE_BYTES   (BLOCK * VALUE_SIZE * 2)
#define PAIR_BYTES    (KEY_BYTES + VALUE_BYTES)
#define KEPT_BYTES    (PASS == FORWARD ? 0 : OWN * (KEY_SIZE + VALUE_SIZE) * 2)
#define QUERIES_BYTES (PASS == FORWARD ? ROWS * KEY_SIZE * 2 : 0) /* of a consumer */
#define STATS_BYTES   (PASS == BACKWARD_KV ? 4 * 512 : 0)
#define RING_BYTES    (ARENA - KEPT_BYTES - 2 * QUERIES_BYTES - STATS_BYTES - 1024) /* barriers */
#define PAIRS         (RING_BYTES / PAIR_BYTES > 4 ? 4 : RING_BYTES / PAIR_BYTES)
#define STAGES        (PASS == BACKWARD_KV ? PAIRS : 2 * PAIRS)
/* Byte offsets in the arena. */
#define STAGES_AT     KEPT_BYTES
#define QUERIES_AT    (STAGES_AT + PAIRS * PAIR_BYTES)
#define STATS_AT      (QUERIES_AT + 2 * QUERIES_BYTES)
#define FULL_AT       (STATS_AT + STATS_BYTES)
#define EMPTY_AT      (FULL_AT + 8 * STAGES)
#define KEPT_AT       (EMPTY_AT + 8 * STAGES)
#define QUERIES_FULL  (KEPT_AT + 8)
#define QUERIES_EMPTY (QUERIES_FULL + 16)
#define TILE_FULL     (QUERIES_EMPTY + 16)
#define TILE_EMPTY    (TILE_FULL + 16)
#define TILE_AT       (TILE_EMPTY + 16)

#include "lib/pipeline.h"

/* The OWN rows of a work-group: those from position `first` on, of one head (in BACKWARD_KV a head
 * of keys and values) of one document, which begins at row `offset` of its sequence. */
typedef struct place {
    int length, heads, kv_heads, window, sequence, offset, head, first;
    int slot;     /* slot of the stats of the document's first block */
    size_t token; /* the document's first token */
} place;

/* The kernel's operands and results. */
typedef struct tensors {
    float scale, factor;
    global float *scratch;        /* backward: the stats; FORWARD: counter of taken tiles */
    global const float *sinks;    /* FORWARD: the heads' sinks, or null */
    global float *result, *other; /* FORWARD: out, lse; BACKWARD_Q: dq, null; BACKWARD_KV: dk, dv */
    global ushort *out_bf16;      /* FORWARD: out rounded to bf16, or null */
} tensors;

/* The addresses of the operands' tensor maps; dout only in the backward passes. */
typedef struct maps {
    ulong q, k, v, dout;
} maps;

/* x[64,width] = factor[row] * sums, from position `first` on; x has `heads` heads. */
INLINED void store_rows(const float *sums, int width, const float *factor, place at, int first,
                        int heads, global float *x) {
    const size_t stride = heads * width;
    x += (at.token + first) * stride + at.head * width;
    store_rows_at(sums, width, factor, at.length - first, x, stride);
}

/* Stages hold a block of keys and a block of values alternately; in BACKWARD_KV each holds a pair
 * of q and dout. */
INLINED uint stage_at(uint base, uint step) {
    const uint stage = step % STAGES;
    return base + STAGES_AT +
           (PASS == BACKWARD_KV ? stage * PAIR_BYTES
                                : stage / 2 * PAIR_BYTES + stage % 2 * KEY_BYTES);
}

/* As release_stage of lib/pipeline.h, but by a predicated instruction: a branch would make the
 * lanes of a warp diverge. */
INLINED void hand_back(uint base, uint step) {
    __asm__ volatile(
        "{ .reg .pred p; setp.ne.u32 p, %1, 0; @p mbarrier.arrive.shared::cta.b64 _, [%0]; }" ::"r"(
            empty_of(base, step)),
        "r"((uint)(get_local_id(0) % 128 == 0))
        : "memory");
}

/* Waits until the stage of `step` is free, and returns the barrier at which its loads count their
 * `bytes`. */
INLINED uint begin_stage(uint base, uint step, uint bytes) {
    const uint full = claim_stage(base, step);
    expect(full, bytes);
    return full;
}

/* The number of blocks of 64 rows in a document. */
INLINED int blocks_of(int length) {
    return (length + ROWS - 1) / ROWS;
}

/* Masks the scores of the keys that a query does not see. The block's first query is `ahead`
 * positions after its first key. In BACKWARD_KV the own rows are keys. */
INLINED void mask_unseen(float *score, int ahead, int window) {
    if (ahead >= BLOCK ? (WINDOW ? ahead + ROWS <= window : true) : false)
        return; /* all keys are seen */
    const int column = opaque(own_column(0)), row = opaque(own_row());
    const int apart = ahead + (PASS == BACKWARD_KV ? column - row : row - column);
    UNROLL_FOR(int i = 0; i < BLOCK / 2; i++) {
        const int further = i / 2 % 2 * 8 - i / 4 * 8 - i % 2;
        const int distance = PASS == BACKWARD_KV ? apart - further : apart + further;
        if (WINDOW ? (uint)distance >= (uint)window : distance < 0)
            score[i] = -INFINITY;
    }
}

/* Loads the own rows of two tensors: of `keys`, whose heads have KEY_SIZE columns, and of `values`,
 * whose heads have VALUE_SIZE columns. */
INLINED void load_kept(place at, ulong keys, ulong values, uint base) {
    const int row = at.offset + at.first;
    expect(base + KEPT_AT, KEPT_BYTES);
    for (int i = 0; i < 2; i++) {
        load_block(base + i * ROWS * KEY_SIZE * 2, keys, ROWS, KEY_SIZE, at.head * KEY_SIZE,
                   row + i * ROWS, at.sequence, base + KEPT_AT);
        load_block(base + OWN * KEY_SIZE * 2 + i * ROWS * VALUE_SIZE * 2, values, ROWS, VALUE_SIZE,
                   at.head * VALUE_SIZE, row + i * ROWS, at.sequence, base + KEPT_AT);
    }
}

/* The blocks of keys [begin, end) that `rows` queries from position `first` on see. */
typedef struct range {
    int begin, end;
} range;

INLINED range blocks_seen(place at, int first, int rows) {
    const int blocks = (at.length + BLOCK - 1) / BLOCK;
    return (range){WINDOW ? min(max(first - at.window + 1, 0) / BLOCK, blocks - 1) : 0,
                   min(blocks, (first + rows - 1) / BLOCK + 1)};
}

/* Loads the keys and the values of a block into the stages of `step` and `step` + 1. */
INLINED void load_keys(place at, maps of, uint base, int block, uint step) {
    const int kv_head = at.head / (at.heads / at.kv_heads), row = at.offset + block * BLOCK;
    load_block(stage_at(base, step), of.k, BLOCK, KEY_SIZE, kv_head * KEY_SIZE, row, at.sequence,
               begin_stage(base, step, KEY_BYTES));
    load_block(stage_at(base, step + 1), of.v, BLOCK, VALUE_SIZE, kv_head * VALUE_SIZE, row,
               at.sequence, begin_stage(base, step + 1, VALUE_BYTES));
}

/* The stats of a head's queries in a block of the document. */
INLINED global const float *stats_of(place at, tensors t, int head, int block) {
    return t.scratch + ((size_t)(at.slot + block) * at.heads + head) * 2 * ROWS;
}

/*
 * The rows of tile number `tile`. Tiles of whole sequences come in sections of `section` heads, so
 * that the heads of all tiles in progress fit in the cache. Within a section, the tiles with the
 * most work come first. `list`: the blocks of OWN rows of all documents, or null.
 */
INLINED place place_of(int tile, moert_nvidia_attention_args args,
                       global const moert_attention_block *list) {
    const int each = PASS == BACKWARD_KV ? args.kv_heads : args.heads, index = tile / each;
    place at = {args.length, args.heads, args.kv_heads, args.window, 0, 0, tile % each, 0, 0, 0};
    if (list != 0) {
        const moert_attention_block b = list[index];
        at.length = b.length;
        at.sequence = (int)(b.token / args.length);
        at.offset = (int)(b.token % args.length);
        at.first = b.first;
        at.slot = b.slot;
        at.token = b.token;
    } else {
        const int blocks = (args.length + OWN - 1) / OWN, pairs = args.sequences * each;
        const int first = tile / (args.section * blocks) * args.section,
                  rest = tile - first * blocks, width = min(args.section, pairs - first);
        const int nth = rest / width, pair = first + rest % width;
        at.head = pair % each;
        at.sequence = pair / each;
        at.first = (PASS == BACKWARD_KV ? nth : blocks - 1 - nth) * OWN;
        at.slot = at.sequence * blocks_of(args.length);
        at.token = (size_t)at.sequence * args.length;
    }
    return at;
}

#if PASS == FORWARD
#include "attention/nvidia/forward.h"
#elif PASS == BACKWARD_Q
#include "attention/nvidia/q.h"
#else
#include "attention/nvidia/kv.h"
#endif

/* The tensor maps of the operands; dout is read only in the backward passes. */
typedef struct tensor_maps {
    tensor_map q, k, v, dout;
} tensor_maps;

/* Grid: {`tiles`}, which is (kv_)heads * blocks of OWN rows of all documents; in FORWARD it may be
 * less, and each work-group then computes several tiles. */
kernel __attribute__((reqd_work_group_size(384, 1, 1))) void nvidia_attention(
    tensor_maps operands, global float *scratch, global float *result, global float *other,
    global ushort *out_bf16, global const float *sinks, global const moert_attention_block *list,
    moert_nvidia_attention_args args) {
    local __attribute__((aligned(1024))) uchar arena[1040];
    const uint base = local_address(arena), thread = get_local_id(0);
    const tensors t = {args.scale, args.factor, scratch, sinks, result, other, out_bf16};
    const maps of = {MAP_ADDRESS(nvidia_attention, 0), MAP_ADDRESS(nvidia_attention, 1),
                     MAP_ADDRESS(nvidia_attention, 2), MAP_ADDRESS(nvidia_attention, 3)};
    if (thread == 0) {
        begin_pipeline(base, 1, 2);
        begin_barrier(base + KEPT_AT, 1);
        begin_ring(base + QUERIES_FULL, base + QUERIES_EMPTY, 2, 1, 128);
        begin_ring(base + TILE_FULL, base + TILE_EMPTY, 2, 1, 1 + 256);
        fence_barriers();
    }
    barrier(CLK_LOCAL_MEM_FENCE);
#if PASS == FORWARD
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0)
            produce_tiles(args, list, of, base, arena);
        else if (thread == 32)
            produce_queries(args, list, t, of.q, base, arena);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume_tiles(args, list, t, base, arena);
    }
#else
    const place at = place_of(get_group_id(0), args, list);
    if (thread < 128) {
        release_registers(PRODUCER_REGISTERS);
        if (thread == 0)
            produce(at, t, of, base);
    } else {
        claim_registers(CONSUMER_REGISTERS);
        consume(at, t, base, arena);
    }
#endif
}

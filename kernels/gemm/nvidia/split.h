/*
 * The producer of split.cl, and the sums of its consumers.
 */

/* ---- tiles ---- */

typedef struct shape {
    uint groups, lines, columns,
        k_size; /* only WGRAD has several groups; k_size is not used in WGRAD */
    uint keeps; /* groups without rows keep their old values */
} shape;

/* First line and column, K size, and the row at which the group's K begins. */
typedef struct tile {
    uint group, line, column, first, k_size;
    bool skipped;
} tile;

static inline uint tiles_across(const shape *s) {
    return (s->columns + COLUMNS - 1) / COLUMNS;
}

static inline uint count_tiles(const shape *s) {
    return s->groups * ((s->lines + LINES - 1) / LINES) * tiles_across(s);
}

/* Consecutive tiles have the same lines. */
static inline tile find_tile(const shape *s, global const uint *ends, uint n) {
    const uint across = tiles_across(s), down = (s->lines + LINES - 1) / LINES;
    const uint group = n / (down * across), line = n / across % down * LINES,
               column = n % across * COLUMNS;
    if (ORIENTATION != WGRAD)
        return (tile){0, line, column, 0, s->k_size, false};
    const uint first = group > 0 ? ends[group - 1] : 0, k_size = ends[group] - first;
    return (tile){group, line, column, first, k_size, s->keeps && k_size == 0};
}

/* ---- the producer ---- */

/* Starts the loads of a block of both operands. */
static inline void load_blocks(const tile *t, uint k, ulong map_a, ulong map_b, uint a, uint full) {
    const uint b = a + A_BYTES, row = t->first + k;
    expect(full, STAGE_BYTES);
    if (ORIENTATION == WGRAD)
        for (int i = 0; i < LINES / 32; i++)
            load_box(a + i * BOX_BYTES, map_a, 2 * (t->line + 32 * i), row, 0, full);
    else
        load_box(a, map_a, 2 * k, t->line, 0, full);
    for (int p = 0; p < PARTS; p++)
        if (TRANSPOSED_B)
            for (int i = 0; i < COLUMNS / 64; i++)
                load_box(b + p * B_BYTES + i * BOX_BYTES, map_b, t->column + 64 * i, row, p, full);
        else
            load_box(b + p * B_BYTES, map_b, k, t->column, p, full);
}

static inline void produce(const shape *s, global const uint *ends, ulong map_a, ulong map_b,
                           uint base) {
    uint step = 0;
    for (uint n = get_group_id(0); n < count_tiles(s); n += get_num_groups(0)) {
        const tile t = find_tile(s, ends, n);
        for (uint k = 0; k < t.k_size; k += BLOCK_K, step++) {
            const uint full = claim_stage(base, step);
            load_blocks(&t, k, map_a, map_b, base + step % STAGES * STAGE_BYTES, full);
        }
    }
}

/* ---- the consumers ---- */

/* Clears the K values from `k_size` on in the boxes that a consumer multiplies: its own boxes of A
 * and all boxes of B. Both consumers clear B, so that neither waits for the other. */
static inline void clear_k(local uchar *stage, uint k_size, uint consumer) {
    for (uint i = 0; i < 2 + PARTS * B_BYTES / BOX_BYTES; i++)
        for (uint at = k_size * 128 + get_local_id(0) % 128 * 16; at < BOX_BYTES; at += 128 * 16)
            *(local uint4 *)(stage + (i < 2 ? 2 * consumer + i : 2 + i) * BOX_BYTES + at) =
                (uint4)(0);
    fence_tensor();
    barrier_of(CLEARED + consumer, 128);
}

/* K values k, which is even, and k + 1 of a line of A. */
static inline float2 load_pair(local const uchar *a, uint line, uint k) {
    if (ORIENTATION != WGRAD)
        return *(local const float2 *)(a + line * 128 + (k / 4 ^ line % 8) * 16 + k % 4 * 4);
    local const uchar *at = a + line / 32 * BOX_BYTES + k * 128 + line % 4 * 4;
    const uint word = line % 32 / 4;
    return (float2)(*(local const float *)(at + (word ^ k % 8) * 16),
                    *(local const float *)(at + 128 + (word ^ (k + 1) % 8) * 16));
}

/* Splits a work-item's values of A into parts, in the register layout of wgmma's operand A. Each 16
 * K values take four registers with a pair of values each: lines `line`, `line` + 8, `line` and
 * `line` + 8. */
INLINED void split_lines(uint parts[PARTS][STEPS][4], local const uchar *a, uint line) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        UNROLL_FOR(int j = 0; j < 4; j++) {
            float2 left =
                load_pair(a, line + j % 2 * 8, 16 * i + j / 2 * 8 + get_local_id(0) % 4 * 2);
            UNROLL_FOR(int p = 0; p < PARTS; p++) {
                parts[p][i][j] = round_pair(left.x, left.y);
                left -= widen_pair(0, parts[p][i][j]);
            }
        }
}

#if COLUMNS == 128
#define WIDTH        "128"
#define LIST(how, s) LIST_64(how, s)
#define OPERANDS     SUMS_TO_63 "}, {%64, %65, %66, %67}, %68"
#else
#define WIDTH        "64"
#define LIST(how, s) LIST_16(how, s, 0), LIST_16(how, s, 16)
#define OPERANDS                                                                                   \
    "%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, " TEN(1) TEN(2) "%30, %31}, {%32, %33, %34, %35}, "   \
                                                             "%36"
#endif

/* sums[64,COLUMNS] = a[64,16] b[16,COLUMNS], a in registers; += if `keep` is 1. The sums must stay
 * in the same registers while the wgmma is in flight. */
#define WGMMA_SPLIT(s, a, b, how, keep)                                                            \
    __asm__ volatile("{ .reg .pred p; setp.ne.b32 p, " TEXT(                                       \
                         keep) ", 0;\n"                                                            \
                               "//@sm_90a wgmma.mma_async.sync.aligned.m64n" WIDTH                 \
                               "k16.f32.bf16.bf16 {" OPERANDS                                      \
                               ", p, 1, 1, " TEXT(TRANSPOSED_B) ";\n}"                             \
                     : LIST(how, s)                                                                \
                     : "r"((a)[0]), "r"((a)[1]), "r"((a)[2]), "r"((a)[3]), "l"(b))

#define NEXT (TRANSPOSED_B ? 128 : 2) /* the size of 16 K values, in units of 16 bytes */

/* The descriptor of a part of B: if B is transposed, boxes of 32 rows along K with a 128-byte
 * swizzle; otherwise 64 bytes for each column with a 64-byte swizzle. */
static inline ulong matrix_b(uint b, int part) {
    const ulong at = (b + part * B_BYTES) >> 4 & 0x3FFF;
    return TRANSPOSED_B ? at | (ulong)(BOX_BYTES / 16) << 16 | (ulong)64 << 32 | (ulong)1 << 62
                        : at | (ulong)1 << 16 | (ulong)32 << 32 | (ulong)2 << 62;
}

INLINED void add_products(float *sum, uint a[STEPS][4], ulong b) {
    UNROLL_FOR(int i = 0; i < STEPS; i++)
        WGMMA_SPLIT(sum, a[i], b + i * NEXT, "+f", 1);
}

/* sum = 64 lines x 32 K values by 32 K values x COLUMNS columns; asynchronous. */
INLINED void multiply(float *sum, uint a[PARTS][STEPS][4], uint b) {
    const ulong b0 = matrix_b(b, 0), b1 = matrix_b(b, 1), b2 = matrix_b(b, 2);
    wgmma_fence();
    WGMMA_SPLIT(sum, a[0][0], b2, "=f", 0);
    WGMMA_SPLIT(sum, a[0][1], b2 + NEXT, "+f", 1);
    add_products(sum, a[2], b0);
    add_products(sum, a[1], b1);
    add_products(sum, a[0], b1);
    add_products(sum, a[1], b0);
    add_products(sum, a[0], b0);
    wgmma_commit();
}

/* Keeps the compiler from moving reads of the sums before the preceding wait. */
#undef SETTLE
#define SETTLE(s) __asm__ volatile("" : LIST("+f", s)::"memory")

/* Adds a tile's blocks to sum[64,COLUMNS]; `line`: this work-item's first line in a block. */
INLINED void add_blocks(float *sum, ring *r, const tile *t, uint line) {
    for (int left = t->k_size; left > 0; left -= BLOCK_K, r->step++) {
        const uint at = r->step % STAGES * STAGE_BYTES;
        uint a[PARTS][STEPS][4];
        float block[SUMS_OWN];
        await_full(r->base, r->step);
        if (ORIENTATION == WGRAD && left < BLOCK_K)
            clear_k(r->arena + at, left, r->consumer);
        split_lines(a, r->arena + at, line);
        await_turn(r->consumer);
        multiply(block, a, r->base + at + A_BYTES);
        pass_turn(r->consumer);
        wgmma_wait(0);
        SETTLE(block);
        leave_stage(r->base, r->step);
        UNROLL_FOR(int i = 0; i < SUMS_OWN; i++)
            sum[i] += block[i];
    }
}

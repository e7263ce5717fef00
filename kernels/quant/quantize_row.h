/*
 * Included by quantize.cl in the GPU form: quantize_row.
 *
 * LANES items share a block, and each holds HELD_PARTS parts of it, so that the work that an item
 * does once per block serves HELD_PARTS * PART elements. In blocks of 16, an item's parts are 8
 * consecutive columns; in blocks of 128, every eighth part.
 */
#define LANES      (BLOCK == 16 ? 2 : 8)
#define HELD_PARTS (BLOCK / (LANES * PART))
#define PARTS      4 /* parts that an item loads at once */

/* The first column of the step whose lanes in this item are part number i of the item. */
static inline int step_of(int i) {
    const int block = i / HELD_PARTS * (MOERT_ITEMS / LANES) + item_index() / LANES,
              part = i % HELD_PARTS;
    const int lane = item_index() % LANES;
    return block * BLOCK + (BLOCK == 16 ? lane * HELD_PARTS + part : part * LANES + lane) * PART -
           part_start();
}

/* Encodes and stores an item's HELD_PARTS parts from number `from` on. */
static inline void store_payload(const job *j, const scaling *s, const vec *x, uint row, int c,
                                 int from, int last) {
#if ELEMENT_BITS == 4 && BLOCK == 16 && defined(ALIGNED)
    const int own = c + step_of(from) + part_start();
    if (ROUNDING <= NEAREST && own + 2 * PART <= last) { /* 8 elements at once */
        global uint *to = (global uint *)(j->q + row * j->args.q_bytes + own / 2);
        *to = s->zero.s0 ? 0
                         : pack_e2m1(e2m1_steps(computed(scaled(s, x[0]))),
                                     e2m1_steps(computed(scaled(s, x[1]))));
        return;
    }
#elif defined(HAS_FP8) && ELEMENT_BITS == 8 && defined(ALIGNED)
    UNROLL_FOR(int i = 0; i < HELD_PARTS; i++) {
        const int own = c + step_of(from + i) + part_start();
        const uint payload = pack_bytes(scaled(s, x[i]), ELEMENT);
        if (own < last)
            *(global uint *)(j->q + row * j->args.q_bytes + own) = s->zero.s0 ? 0 : payload;
    }
    return;
#endif
    UNROLL_FOR(int i = 0; i < HELD_PARTS; i++) {
        const int step = c + step_of(from + i);
        store_row(j, encode_elements(j, s, x[i], ROW, row, step), row, step, last - step);
    }
}

KERNEL void quantize_row(ARGUMENTS) {
    ROW_GROUP;
    const job job_ = JOB, *j = &job_;
    const part p = find_part(ends, &args, ROW);
    if (p.rows == 0)
        return;
    const shared common = load_shared(j, p.group);
    for (int c = p.first; c < p.last; c += PARTS * VEC) {
        vec x[PARTS];
        UNROLL_FOR(int i = 0; i < PARTS; i++)
            x[i] = load_x(j, p.row, c + step_of(i), p.last - c - step_of(i));
        UNROLL_FOR(int b = 0; b < PARTS; b += HELD_PARTS) {
            uvec largest = 0;
            UNROLL_FOR(int i = b; i < b + HELD_PARTS; i++)
                largest = max(largest, magnitude_bits(x[i]));
            const scaling s = make_scale(j, common, block_largest(largest, LANES, row_group), true);
            store_payload(j, &s, x + b, p.row, c, b, p.last);
            store_block_scale(j, &s, p.row, c + step_of(b));
        }
    }
}

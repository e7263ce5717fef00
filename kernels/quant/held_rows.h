/*
 * Included by fake_quantize.cl and fp8_operands.cl after the struct task, which has the fields
 * args, p and x: loads the rows that a row group holds.
 */
static inline void load_rows(const task *t, loaded own[HELD], int column) {
    const uint first = first_held_again();
    const int n = t->p.last - column;
    ulong at = (t->p.row + first) * t->args->x_stride + column; /* of the next row */
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++, at += t->args->x_stride) own[r] =
        first + r < t->p.rows ? load_x_as(t->x, at, n) : (loaded)0;
}

static inline void hold_rows(vec held[HELD], const loaded own[HELD]) {
    UNROLL_ON_GPU for (uint r = 0; r < HELD; r++) held[r] = floats_of(own[r]);
}

/* Parts of ops (bytes.h). */
#include "support/op/bytes.h"

#include "base/dtype.h"

/* If `copy`, copies bytes or bits. Returns whether both ranges are equal afterwards. */
static bool each_byte(unsigned char *to, const unsigned char *from, size_t bytes, bool copy) {
    if (copy)
        memcpy(to, from, bytes);
    return memcmp(to, from, bytes) == 0;
}

static bool each_bits(unsigned char *to, unsigned char from, unsigned mask, bool copy) {
    if (copy)
        *to = (unsigned char)((*to & ~mask) | (from & mask));
    return (*to & mask) == (from & mask);
}

static bool each_element(const ops_pair *p, moert_op_buffer payload, bool copy) {
    const ops_operand a = ops_find(&p->few->shape, ops_bytes_ends(p->few), payload),
                      b = ops_find(&p->many->shape, ops_bytes_ends(p->many), payload);
    const unsigned mask = moert_format_element_bits(a.as.how.format) == 4 ? 0xF : 0xFF;
    bool all = true;
    for (size_t line = 0; line < (a.weight ? ops_end(&a, 0) : p->rows); line++)
        for (size_t j = 0; j < a.columns; j++) {
            const ops_place to = ops_locate(&a, p->h, line, j),
                            from = ops_locate(&b, p->g, line, j);
            assert_int_equal(to.shift, from.shift);
            all &= each_bits(p->few->at[payload] + to.byte, p->many->at[payload][from.byte],
                             mask << to.shift, copy);
            all &= each_byte(p->few->at[a.scale] + to.scale, p->many->at[a.scale] + from.scale, 1,
                             copy);
        }
    return all;
}

/* Copies or compares the group's part of a buffer: rows, one value per row, or an equal part per
 * group. Scales are copied or compared together with their payload. */
static bool each_of(const ops_pair *p, moert_op_buffer which, bool copy) {
    const char *shape = moert_op_shape(&p->few->shape.options, which);
    const moert_op_need *need = &p->few->shape.needs[which];
    unsigned char *few = p->few->at[which], *many = p->many->at[which];
    if (p->few->bytes[which] == 0 || which == MOERT_OP_BUFFER_ends ||
        which == MOERT_OP_BUFFER_gather)
        return true;
    for (size_t q = 0; q < p->few->shape.quantized_count; q++)
        if (p->few->shape.quantized[q].payload == which)
            return each_element(p, which, copy);
    if (shape[0] == 'G') {
        const size_t part = p->few->bytes[which] / p->few->shape.options.groups;
        return each_byte(few + p->h * part, many + p->g * part, part, copy);
    }
    if (shape[0] != 'M')
        return true;
    const bool one = shape[1] == '\0';
    const size_t value = moert_dtype_bits(need->type) / 8;
    const size_t stride = value * (one ? 1 : need->stride), width = value * (one ? 1 : need->width);
    const size_t to = ops_group_start(ops_bytes_ends(p->few), p->h),
                 from = ops_group_start(ops_bytes_ends(p->many), p->g) + p->skipped;
    bool all = true;
    for (size_t r = 0; r < p->rows; r++)
        all &= each_byte(few + (to + r) * stride, many + (from + r) * stride, width, copy);
    return all;
}

void ops_copy_rows(const ops_pair *p) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        each_of(p, i, true);
}

void ops_assert_same_rows(const char *title, const ops_pair *p) {
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++)
        if (!each_of(p, i, false))
            fail_msg("%s: %s of group %zu differs", title, moert_op_buffer_name(i), p->g);
}

void ops_check_alone(const char *title, const char *backend, moert_op_options options,
                     const ops_bytes *start, const ops_bytes *all) {
    const uint32_t *ends = ops_bytes_ends(all);
    options.groups = 1;
    for (size_t g = 0; g < all->shape.options.groups; g++) {
        const size_t before = owned_count();
        const uint32_t rows = ends[g] - (uint32_t)ops_group_start(ends, g);
        options.rows = rows;
        ops_bytes alone = ops_bytes_make(&options, &rows, start->values);
        ops_copy_rows(&(ops_pair){&alone, start, 0, g, rows, 0});
        ops_bytes_execute(backend, &alone);
        ops_assert_same_rows(titled("%s, alone", title), &(ops_pair){&alone, all, 0, g, rows, 0});
        release_since(before);
    }
}

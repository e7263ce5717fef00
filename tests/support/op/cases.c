/* The descriptions of cases.h. */
#include "support/op/cases.h"

moert_op_options ops_product(moert_op_kind kind, moert_operand factor, size_t groups, size_t rows,
                             size_t n, size_t k) {
    moert_op_options o = MOERT_OP_OPTIONS_INIT;
    const bool wgrad = kind == MOERT_OP_GEMM_WGRAD;
    const bool forward = kind == MOERT_OP_GEMM_FORWARD || kind == MOERT_OP_GLU;
    o.kind = kind;
    o.groups = groups;
    o.rows = rows;
    o.n = n;
    o.k = k;
    factor.how.axis = wgrad ? MOERT_AXIS_COLUMN : MOERT_AXIS_ROW;
    if (forward || wgrad)
        o.x = factor;
    if (!forward)
        o.y = factor;
    factor.how.axis = forward ? MOERT_AXIS_ROW : MOERT_AXIS_COLUMN;
    if (!wgrad)
        o.weight = factor;
    return o;
}

void ops_assert_same_results(const char *title, const ops_bytes *got, const ops_bytes *want) {
    const bool wgrad = want->shape.options.kind == MOERT_OP_GEMM_WGRAD;
    for (moert_op_buffer i = 0; i < MOERT_OP_BUFFERS; i++) {
        if (!wgrad && (i == MOERT_OP_BUFFER_weight || i == MOERT_OP_BUFFER_weight_scale))
            continue;
        assert_int_equal(got->bytes[i], want->bytes[i]);
        if (memcmp(got->at[i], want->at[i], got->bytes[i]) != 0)
            fail_msg("%s: %s differs", title, moert_op_buffer_name(i));
    }
}

/* Operands of the dense layers' GEMMs. */
#include "layer/operand.h"

#include "base/memory.h"
#include "base/dtype.h"
#include "gemm/gemm.h"
#include "moert/quantize.h"

moert_dtype moert_operand_type(moert_precision dense) {
    return dense == MOERT_PRECISION_F32 ? MOERT_DTYPE_F32 : MOERT_DTYPE_BF16;
}

size_t moert_operand_floats(moert_dtype type, size_t n) {
    return moert_ceil_div(n * moert_dtype_bits(type) / 8, sizeof(float));
}

moert_dtype moert_operand_between(const moert_device *device, moert_dtype type, size_t groups,
                                  size_t hidden, size_t intermediate) {
    const moert_gemm in = {
        .groups.count = groups, .n = 2 * intermediate, .k = hidden, .x.type = type};
    const moert_gemm out = {.groups.count = groups, .n = hidden, .k = intermediate, .x.type = type};
    const bool rounds = device != NULL && type == MOERT_DTYPE_BF16 &&
                        moert_gemm_rounds(device, &in) && moert_gemm_rounds(device, &out);
    return rounds ? MOERT_DTYPE_BF16 : MOERT_DTYPE_F32;
}

moert_status moert_operand_take(moert_mesh *mesh, moert_dtype type, size_t n,
                                const moert_buffer *values, moert_scratch which,
                                moert_buffer **operand) {
    *operand = (moert_buffer *)values;
    if (type == MOERT_DTYPE_F32)
        return MOERT_OK;
    MOERT_TRY(moert_mesh_scratch(mesh, which, moert_operand_floats(type, n), operand));
    return moert_cast_run(
        &(moert_cast){sizeof(moert_cast), MOERT_DTYPE_F32, type, n, values, *operand});
}

moert_status moert_operand_buffer(moert_mesh *mesh, moert_dtype type, size_t n, moert_scratch which,
                                  moert_buffer *plain, moert_buffer **operand) {
    *operand = plain;
    return type == MOERT_DTYPE_F32
               ? MOERT_OK
               : moert_mesh_scratch(mesh, which, moert_operand_floats(type, n), operand);
}

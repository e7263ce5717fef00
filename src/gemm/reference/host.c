/* Reads, rounds and writes single elements of any type. */
#include "gemm/reference/host.h"

#include <math.h>

float moert_host_load(const void *memory, moert_dtype type, size_t i) {
    if (type == MOERT_DTYPE_F32)
        return ((const float *)memory)[i];
    return moert_dtype_decode(type, moert_dtype_bits(type) == 8 ? ((const uint8_t *)memory)[i]
                                                                : ((const uint16_t *)memory)[i]);
}

void moert_host_store(void *memory, moert_dtype type, size_t i, float value) {
    if (type == MOERT_DTYPE_F32)
        ((float *)memory)[i] = value;
    else if (moert_dtype_bits(type) == 8)
        ((uint8_t *)memory)[i] = (uint8_t)moert_dtype_encode(type, value);
    else
        ((uint16_t *)memory)[i] = (uint16_t)moert_dtype_encode(type, value);
}

float moert_host_round(moert_dtype type, float value) {
    return type == MOERT_DTYPE_F32 ? value
                                   : moert_dtype_decode(type, moert_dtype_encode(type, value));
}

void moert_host_raise(float *peak, float value) {
    if (fabsf(value) > *peak || isnan(value))
        *peak = fabsf(value);
}

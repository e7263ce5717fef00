/* Single elements of operands of any type, for the reference backend of ops. */
#include <math.h>

#include "op/reference/op.h"

float moert_op_load(const void *memory, moert_number type, size_t i) {
    if (type == MOERT_NUMBER_F32)
        return ((const float *)memory)[i];
    return moert_number_decode(type, moert_number_bits(type) == 8 ? ((const uint8_t *)memory)[i]
                                                                  : ((const uint16_t *)memory)[i]);
}

void moert_op_store(void *memory, moert_number type, size_t i, float value) {
    if (type == MOERT_NUMBER_F32)
        ((float *)memory)[i] = value;
    else if (moert_number_bits(type) == 8)
        ((uint8_t *)memory)[i] = (uint8_t)moert_number_encode(type, value);
    else
        ((uint16_t *)memory)[i] = (uint16_t)moert_number_encode(type, value);
}

float moert_op_round(moert_number type, float value) {
    return type == MOERT_NUMBER_F32 ? value
                                    : moert_number_decode(type, moert_number_encode(type, value));
}

void moert_op_raise(float *peak, float value) {
    if (fabsf(value) > *peak || isnan(value))
        *peak = fabsf(value);
}

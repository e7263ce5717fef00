/*
 * Fuzzing of op objects: the meaning of each input byte, and declarations that the files share.
 *
 * Every byte has a fixed position and one meaning, so that a mutation of the input has a small
 * effect. The last bytes choose a description that is legal by construction, and the contents of
 * the op's buffers. The first bytes choose edits, which then set single fields and buffers to any
 * value. Bytes past the end of the input are 0, which selects the simplest choice.
 */
#pragma once

#include "moert/device.h"
#include "moert/ops.h"

typedef struct fuzz_input {
    uint8_t field_edits, fields[4][2];   /* number of edits; field and value of each edit */
    uint8_t buffer_edits, buffers[3][2]; /* number of edits; buffer and change of each edit */
    uint8_t kind, groups, rows, n, k, switches[2], permute, types[2], strides, glu, interleave;
    /* quantized: the operands that are quantized; how: their quantizers */
    uint8_t quantized, how[4][2];
    uint8_t row_multiple, backend, calls, ends, gather, payload;
} fuzz_input;

_Static_assert(sizeof(fuzz_input) <= 48, "-max_len in the Makefile");

/* Returns the number of edits that `byte`, a byte of the input, requests; at most `most`. */
static inline size_t fuzz_edits(unsigned byte, size_t most) {
    const size_t wanted = byte < 64 ? 0 : byte < 144 ? 1 : byte < 208 ? 2 : 4;
    return wanted < most ? wanted : most;
}

/* Prints a message and aborts. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes the description that an input encodes. Returns true if the input has no edits, so that the
 * description must be legal. */
bool fuzz_describe(const fuzz_input *in, moert_op_options *options);

/* The buffers of one execute; they wrap guarded host memory. */
typedef struct fuzz_buffers {
    moert_op_buffers of;
    bool sound; /* all buffers have the required sizes, and ends are legal */
} fuzz_buffers;

/* Makes the buffers of an op; returns false if the buffers would be too large. `other` is another
 * device. */
bool fuzz_buffers_make(const fuzz_input *in, const moert_op_options *options, const moert_op *op,
                       moert_device *device, moert_device *other, fuzz_buffers *buffers);
/* A hash of all bytes of the buffers. */
uint64_t fuzz_buffers_hash(void);
/* Fails if a guard has changed; then releases the buffers. */
void fuzz_buffers_release(void);

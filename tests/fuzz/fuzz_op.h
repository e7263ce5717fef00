/*
 * Fuzzing of op objects: the meaning of each input byte, and declarations that the files share.
 *
 * Every byte has a fixed position and one meaning, so that a mutation of the input has a small
 * effect. The last bytes choose a description that is legal by construction, and fill the buffers
 * that it needs. The first bytes choose edits, which then set single fields and buffers to any
 * value. Missing bytes are 0, which means the simplest choice.
 */
#pragma once

#include "device/device.h"
#include "moert/ops.h"

enum {
    FIELD_EDITS = 4,
    BUFFER_EDITS = 3,
    AT_FIELDS = 0, /* the number of field edits, then field and value of each */
    /* the number of buffer edits, then buffer and change of each */
    AT_BUFFERS = AT_FIELDS + 1 + 2 * FIELD_EDITS,
    AT_KIND = AT_BUFFERS + 1 + 2 * BUFFER_EDITS,
    AT_GROUPS,
    AT_ROWS,
    AT_N,
    AT_K,
    AT_SWITCHES, /* 2 bytes */
    AT_PERMUTE = AT_SWITCHES + 2,
    AT_TYPES, /* 2 bytes */
    AT_STRIDES = AT_TYPES + 2,
    AT_GLU,
    AT_INTERLEAVE,
    AT_QUANTIZED, /* the operands that are quantized */
    AT_HOW,       /* 2 bytes for each of 4 operands */
    AT_ROW_MULTIPLE = AT_HOW + 8,
    AT_BACKEND,
    AT_CALLS,
    AT_ENDS,
    AT_GATHER,
    AT_PAYLOAD,
    INPUT_BYTES
};

_Static_assert(INPUT_BYTES <= 48, "-max_len in the Makefile");

typedef struct fuzz_input {
    const uint8_t *bytes;
    size_t count;
} fuzz_input;

static inline unsigned fuzz_byte(const fuzz_input *in, size_t at) {
    return at < in->count ? in->bytes[at] : 0;
}

/* Returns the number of edits that a byte of the input requests, at most `most`. */
static inline size_t fuzz_edits(unsigned byte, size_t most) {
    const size_t wanted = byte < 64 ? 0 : byte < 144 ? 1 : byte < 208 ? 2 : 4;
    return wanted < most ? wanted : most;
}

/* Prints a message and aborts. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* Makes the description of an input; true if it has no edits, and so must be legal. */
bool fuzz_describe(const fuzz_input *in, moert_op_options *options);

/* The buffers of one execute; they wrap guarded host memory. */
typedef struct fuzz_buffers {
    moert_op_buffers of;
    bool sound; /* all buffers have the required sizes, and ends are legal */
} fuzz_buffers;

/* Makes the buffers of an op; false if they would be too large. `other` is another device. */
bool fuzz_buffers_make(const fuzz_input *in, const moert_op_options *options, const moert_op *op,
                       moert_device *device, moert_device *other, fuzz_buffers *buffers);
/* A hash of all bytes of the buffers. */
uint64_t fuzz_buffers_hash(void);
/* Fails if a guard has changed; then releases the buffers. */
void fuzz_buffers_release(void);

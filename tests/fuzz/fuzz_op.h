/*
 * Fuzzing of op objects: what a byte of the input means, and what the files share.
 *
 * Every byte has a fixed place and a meaning of its own, so that mutations stay small. The last
 * bytes choose a description that is legal by construction, and the buffers that it asks for;
 * "strokes", by the first bytes, then set single fields and buffers to anything. An input that is
 * too short goes on in zeros, which mean the plainest choice.
 */
#pragma once

#include "device/device.h"
#include "moert/ops.h"

enum {
    FIELD_STROKES = 4,
    BUFFER_STROKES = 3,
    AT_FIELDS = 0, /* strokes: their number, then field and value of each */
    AT_BUFFERS = AT_FIELDS + 1 + 2 * FIELD_STROKES, /* likewise buffer and deed */
    AT_KIND = AT_BUFFERS + 1 + 2 * BUFFER_STROKES,
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
    AT_QUANTIzED, /* which operands */
    AT_HOW,       /* 4 operands of 2 bytes */
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

/* How many strokes a byte asks for. */
static inline size_t fuzz_strokes(unsigned byte, size_t most) {
    const size_t wanted = byte < 64 ? 0 : byte < 144 ? 1 : byte < 208 ? 2 : 4;
    return wanted < most ? wanted : most;
}

/* Says what is wrong and aborts. */
_Noreturn void fuzz_fail(const char *format, ...) __attribute__((format(printf, 1, 2)));

/* The description of an input; true if nothing in it was set to anything. */
bool fuzz_describe(const fuzz_input *in, moert_op_options *options);

/* The buffers of one execute, in guarded host memory that they wrap. */
typedef struct fuzz_buffers {
    moert_op_buffers of;
    bool sound; /* exactly what the description asks for, with legal ends */
} fuzz_buffers;

/* Makes the buffers of an op; false if they would be too large. `other` is another device. */
bool fuzz_buffers_make(const fuzz_input *in, const moert_op_options *options, const moert_op *op,
                       moert_device *device, moert_device *other, fuzz_buffers *buffers);
/* A hash of all their bytes. */
uint64_t fuzz_buffers_hash(void);
/* Fails if a byte outside of the buffers has changed; then gives them back. */
void fuzz_buffers_release(void);

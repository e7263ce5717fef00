/*
 * Included by wgmma.cl, for operands in MXFP8, MXFP4 and NVFP4, which are exact in bf16. Three
 * warps that would otherwise be idle convert these operands to bf16 in global memory, just ahead of
 * the GEMM, which reads them there.
 *
 * Groups are decoded in the order of the tiles. Every work-group decodes its part of both operands
 * of a group, then increments ready[group]. The producer loads a group's blocks when all
 * work-groups have incremented ready[group]. There is no deadlock, since decoding waits for
 * nothing; but all work-groups must run at the same time, so there must be no more of them than
 * compute units.
 *
 * Scale blocks lie along K. A work-item decodes at a time:
 *
 *     along  K contiguous: 8 elements in each of a few units of 256, the rest of which the other
 *            work-items of its warp decode
 *     down   K along the lines: 8 lines of payload by 8 columns, within a scale block; with 4 bits
 *            a line has the elements of two rows, the first in the low half of a byte
 *
 * decode.h has the formats; PLAIN is bf16 without conversion. Columns are multiples of 8, or of
 * four scale blocks where K is contiguous.
 */
#include "gemm/nvidia/decode.h"

#define DECODERS 96 /* work-items */

/* A quantized operand, and where its bf16 values go. */
typedef struct quantized {
    global const uchar *payload, *scales;
    global uint4 *bf16;
} quantized;

static inline quantized quantized_at(moert_nvidia_quantized at) {
    return (quantized){(global const uchar *)at.payload, (global const uchar *)at.scales,
                       (global uint4 *)at.bf16};
}

/* The part of an operand that one group of the GEMM (an expert) multiplies: lines from `first` on;
 * for decode_down, scale blocks from `block` on. */
typedef struct part {
    uint first, lines, columns, block;
} part;

/* ---- this work-group's part of a group ---- */

/* x of another work-item of the warp. */
static inline uint shuffle(uint x, uint lane) {
    uint theirs;
    __asm__ volatile("shfl.sync.idx.b32 %0, %1, %2, 31, 0xffffffff;"
                     : "=r"(theirs)
                     : "r"(x), "r"(lane));
    return theirs;
}

static inline uint decoder_number(void) {
    return get_group_id(0) * DECODERS + get_local_id(0) - 32;
}

/* The loads for one iteration, issued an iteration ahead of use. Beyond the end, the loads read
 * other elements, since conditional loads would wait for each other. */
typedef struct batch {
    uint payload[16], scales[2];
} batch;

/* A warp's batch along K: UNITS times 8 elements for each work-item. A unit of the warp, 256
 * elements, has WORDS words of scales. A work-item holds every 32nd word of the scales of the
 * batch. */
#define UNITS(format) (64 / CODE_BITS(format))
#define WORDS(format) (256 / RUN_OF(format) / 4)

INLINED batch load_along(int format, quantized x, ulong begin, uint number, uint eights) {
    const uint lane = get_local_id(0) % 32, words = eights / (RUN_OF(format) / 2);
    global const uint *scales = (global const uint *)x.scales + begin / (RUN_OF(format) / 2);
    batch b;
    UNROLL_FOR(int i = 0; i < UNITS(format); i++) {
        const ulong at = begin + min((number * UNITS(format) + i) * 32 + lane, eights - 1);
        if (CODE_BITS(format) == 8) {
            const uint2 two = ((global const uint2 *)x.payload)[at];
            b.payload[2 * i] = two.x;
            b.payload[2 * i + 1] = two.y;
        } else {
            b.payload[i] = ((global const uint *)x.payload)[at];
        }
    }
    UNROLL_FOR(int i = 0; i < (UNITS(format) * WORDS(format) + 31) / 32; i++)
        b.scales[i] =
            scales[min(number * UNITS(format) * WORDS(format) + i * 32 + lane, words - 1)];
    return b;
}

INLINED void decode_along(int format, quantized x, part p) {
    const ulong begin = (ulong)p.first * p.columns / 8;
    const uint eights = (ulong)p.lines * p.columns / 8,
               batches = (eights + 32 * UNITS(format) - 1) / (32 * UNITS(format));
    const uint lane = get_local_id(0) % 32, stride = get_num_groups(0) * DECODERS / 32;
    const uint from = lane / (32 / WORDS(format)), shift = lane / (8 / WORDS(format)) % 4 * 8;
    batch next = load_along(format, x, begin, decoder_number() / 32, eights);
    for (uint number = decoder_number() / 32; number < batches; number += stride) {
        const uint at = number * UNITS(format) * 32 + lane;
        global uint4 *to = x.bf16 + begin + at;
        const batch b = next;
        next = load_along(format, x, begin, min(number + stride, batches - 1), eights);
        UNROLL_FOR(int i = 0; i < UNITS(format); i++) {
            const uint word = i * WORDS(format);
            const uint scale = shuffle(b.scales[word / 32], word % 32 + from) >> shift & 0xFF;
            const uint4 moved = CODE_BITS(format) == 8
                                    ? (uint4)(move_bytes(format, b.payload[2 * i]),
                                              move_bytes(format, b.payload[2 * i + 1]))
                                    : move_halves(b.payload[i]);
            if (at + i * 32 < eights)
                to[i * 32] = scaled(format, moved, (uint4)(scale_pair(format, scale)));
        }
    }
}

/* Loads 8 lines of payload and, in two words, their scales; with 4-bit elements a scale block is
 * always complete. */
INLINED batch load_down(int format, quantized x, part p, uint unit, uint units) {
    const uint block = RUN_OF(format) * CODE_BITS(format) / 8, across = p.columns / 8,
               last = min(unit, units - 1);
    const uint step = last / across, column = last % across,
               line = CODE_BITS(format) == 8 ? p.first : p.block * block;
    const uint2 scales =
        ((global const uint2 *)x.scales)[(ulong)(p.block + step / (block / 8)) * across + column];
    batch b = {.scales = {scales.x, scales.y}};
    UNROLL_FOR(int i = 0; i < 8; i++) {
        const uint own = CODE_BITS(format) == 8 ? min(step * 8 + i, p.lines - 1) : step * 8 + i;
        const uint2 two = ((global const uint2 *)x.payload)[(ulong)(line + own) * across + column];
        b.payload[2 * i] = two.x;
        b.payload[2 * i + 1] = two.y;
    }
    return b;
}

INLINED void decode_down(int format, quantized x, part p) {
    const int bits = CODE_BITS(format), rows = 8 / bits; /* rows of elements in one line of bytes */
    const uint across = p.columns / 8, stride = get_num_groups(0) * DECODERS;
    const uint units =
        (p.lines + RUN_OF(format) - 1) / RUN_OF(format) * (RUN_OF(format) / rows / 8) * across;
    batch next = load_down(format, x, p, decoder_number(), units);
    for (uint unit = decoder_number(); unit < units; unit += stride) {
        const uint row = unit / across * 8 * rows, column = unit % across;
        global uint4 *to = x.bf16 + (ulong)(p.first + row) * across + column;
        const batch b = next;
        uint scales[4];
        next = load_down(format, x, p, unit + stride, units);
        UNROLL_FOR(int i = 0; i < 4; i++) {
            const uint two = b.scales[i / 2] >> i % 2 * 16;
            scales[i] = permute_bytes(scale_pair(format, two & 0xFF),
                                      scale_pair(format, two >> 8 & 0xFF), 0x5410);
        }
        UNROLL_FOR(int i = 0; i < 8 * rows; i++) {
            const uint low = b.payload[i / rows * 2] >> i % rows * 4,
                       high = b.payload[i / rows * 2 + 1] >> i % rows * 4;
            const uint4 moved = bits == 8
                                    ? (uint4)(move_bytes(format, low), move_bytes(format, high))
                                    : (uint4)(move_low_halves(low), move_low_halves(high));
            if (row + i < p.lines)
                to[i * across] =
                    scaled(format, moved, (uint4)(scales[0], scales[1], scales[2], scales[3]));
        }
    }
}

/* ---- groups ---- */

/* Makes this work-group's stores visible to TMA, then increments the group's counter *ready. */
static inline void count_ready(global uint *ready) {
    __asm__ volatile("fence.acq_rel.gpu; fence.proxy.async;" ::: "memory");
    barrier_of(BAR_DECODERS, DECODERS);
    if (get_local_id(0) == 32)
        __asm__ volatile("red.release.gpu.global.add.u32 [%0], 1;" ::"l"(ready) : "memory");
}

/* Waits until all work-groups have decoded a group. */
static inline void await_ready(global const uint *ready) {
    while (acquire_global(ready) < get_num_groups(0))
        ;
    __asm__ volatile("fence.proxy.async;" ::: "memory");
}

#if B_FORMAT != PLAIN && ORIENTATION == FORWARD
#define ALONG_B 1
#else
#define ALONG_B 0
#endif

/* Decodes all groups in order. */
INLINED void decode_ahead(shape s, quantized a, quantized b, local const uint *ends,
                          global uint *ready) {
    const uint lines_b = ORIENTATION == DGRAD ? s.k_size
                         : GLU                ? 2 * s.columns
                                              : s.columns; /* of a weight */
    const uint columns_b = ORIENTATION == FORWARD ? s.k_size : s.columns;
    uint blocks_a = 0, blocks_b = 0;
    for (uint g = s.skip; g < s.groups; g++) {
        const uint first = g > 0 ? ends[g - 1] : 0, rows = ends[g] - first;
        if (ORIENTATION == WGRAD && rows > 0) {
            if (A_FORMAT != PLAIN)
                decode_down(A_FORMAT, a, (part){first, rows, s.lines, blocks_a});
            if (B_FORMAT != PLAIN)
                decode_down(B_FORMAT, b, (part){first, rows, s.columns, blocks_b});
            blocks_a += (rows + RUN_OF(A_FORMAT) - 1) / RUN_OF(A_FORMAT);
            blocks_b += (rows + RUN_OF(B_FORMAT) - 1) / RUN_OF(B_FORMAT);
        } else if (rows > 0) {
            if (A_FORMAT != PLAIN)
                decode_along(A_FORMAT, a, (part){first, rows, s.k_size, 0});
            if (ALONG_B)
                decode_along(B_FORMAT, b, (part){g * lines_b, lines_b, columns_b, 0});
            else if (B_FORMAT != PLAIN)
                decode_down(
                    B_FORMAT, b,
                    (part){g * lines_b, lines_b, columns_b, g * (lines_b / RUN_OF(B_FORMAT))});
        }
        count_ready(ready + g);
    }
}

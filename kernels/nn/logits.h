/*
 * Included by loss.cl: loads of a row of logits, with cache hints, and stores of its gradient.
 *
 * Required: BF16 (0, 1).
 */
#if !defined(BF16)
#error "BF16 must be defined"
#endif
#include "lib/elementary.h"
#include "lib/formats.h"

#define GROUPS_PER_ROW (MOERT_ITEMS == 1 ? 1 : 16)

/* Like load_part, but lanes past n are -infinity: neutral in a maximum, and 0 after exp. */
static inline vec load_logits(global const float *p, int n) {
    return n >= VEC ? load_part(p, n)
                    : select((vec)(-INFINITY), load_part(p, n), lane_places() < (ivec)(n));
}

#if MOERT_ITEMS == 1
typedef uint8 half_uvec;
typedef float8 half_vec;
#define as_half_vec      as_float8
#define vstore_half_part vstore8
#else
typedef uint2 half_uvec;
typedef float2 half_vec;
#define as_half_vec      as_float2
#define vstore_half_part vstore2
#endif

/* Where the caches keep loaded values until they are read again: nowhere, in L2, or only in L1. */
enum { LAST_USE, KEEP_FAR, KEEP_NEAR };

#if defined(ALIGNED) && MOERT_NVIDIA >= 80
#define HAS_LAST_USE /* loads and stores can carry cache hints */
#define LOAD(how)                                                                                  \
    __asm__ volatile("{ .reg .pred p; setp.ne.s32 p, %5, 0; @p ld.global." how "; }"               \
                     : "+f"(x.x), "+f"(x.y), "+f"(x.z), "+f"(x.w)                                  \
                     : "l"(p), "r"((int)inside), "l"(policy))
static inline vec load_for(int use, global const float *p, bool inside, float other) {
    vec x = other;
    ulong policy = 0;
    if (use == KEEP_FAR) {
        __asm__("createpolicy.fractional.L2::evict_last.b64 %0, 1.0;" : "=l"(policy));
        LOAD("L1::no_allocate.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %6");
    } else if (use == KEEP_NEAR) {
        __asm__("createpolicy.fractional.L2::evict_first.b64 %0, 1.0;" : "=l"(policy));
        LOAD("L1::evict_last.L2::cache_hint.v4.f32 {%0, %1, %2, %3}, [%4], %6");
    } else {
        LOAD("cs.v4.f32 {%0, %1, %2, %3}, [%4]");
    }
    return x;
}

static inline void store_last(vec x, global float *p, bool inside) {
    __asm__ volatile(
        "{ .reg .pred p; setp.ne.s32 p, %5, 0; @p st.global.cs.v4.f32 [%4], {%0, %1, %2, %3}; }"
        :
        : "f"(x.x), "f"(x.y), "f"(x.z), "f"(x.w), "l"(p), "r"((int)inside)
        : "memory");
}
#endif

/* Writes the first n lanes of the gradient from column `at` on, as floats or as bf16 (two in the
 * space of a float). */
static inline void store_gradient(vec x, global float *row, ulong at, int n) {
#ifdef HAS_LAST_USE
    if (!BF16) {
        store_last(x, row + at + part_start(), part_start() < n);
        return;
    }
#endif
    if (!BF16) {
        store_part(x, row + at, n);
        return;
    }
    const uvec bf16 = encode(x, DTYPE_BF16);
    const half_vec pairs = as_half_vec((half_uvec)(bf16.even | bf16.odd << 16));
    row += (at + part_start()) / 2;
    n -= part_start();
#ifdef ALIGNED
    if (n > 0)
        *(global half_vec *)row = pairs;
    return;
#endif
    float lane[PART / 2];
    if (n >= PART) {
        vstore_half_part(pairs, 0, row);
        return;
    }
    vstore_half_part(pairs, 0, lane);
    for (int i = 0; i < PART / 2; i++)
        if (2 * i < n)
            row[i] = lane[i];
}

static inline void row_zero(global float *row, ulong vocabulary) {
    for (ulong v = row_group_index() * VEC; v < vocabulary; v += GROUPS_PER_ROW * VEC)
        store_part((vec)(0.0f), row + v, (int)min((ulong)VEC, vocabulary - v));
}

/* exp(x - most); 0 if most, and so all of x, is -infinity. */
static inline vec exponentials(vec x, vec most) {
    return moert_exp2((x - (most > -INFINITY ? most : 0.0f)) * M_LOG2E_F);
}

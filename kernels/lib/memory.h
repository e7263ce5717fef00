/* Included by common.h: loads and stores of the floats of a step. */
/* Whether a part that begins at p can be loaded or stored by a single access. */
#define IS_WHOLE(p) (MOERT_ITEMS > 1 && ((size_t)(p)&15) == 0)

/* Read and write a vector of `n` elements of `type` in the address space `space`, with the
 * alignment of one element. PoCL compiles vloadN and vstoreN to several accesses, vstoreN of bytes
 * and 16-bit elements to N. */
#if MOERT_ITEMS == 1 && MOERT_CPU && defined(__clang__)
typedef float16 loose_float16 __attribute__((aligned(4)));
typedef uint16 loose_uint16 __attribute__((aligned(4)));
typedef ushort16 loose_ushort16 __attribute__((aligned(2)));
typedef uchar16 loose_uchar16 __attribute__((aligned(1)));
typedef uchar8 loose_uchar8 __attribute__((aligned(1)));
#define LOAD_VECTOR(space, type, n, p)     (*(space const loose_##type##n *)(p))
#define STORE_VECTOR(space, type, n, x, p) (*(space loose_##type##n *)(p) = (x))
#else
#define LOAD_VECTOR(space, type, n, p)     vload##n(0, p)
#define STORE_VECTOR(space, type, n, x, p) vstore##n(x, 0, p)
#endif

/* Reads n floats of a step; lanes beyond them are zero. n may exceed VEC, and in the GPU form it
 * may be 0 or negative. */
static inline vec load_part(global const float *p, int n) {
    p += part_start();
    n -= part_start();
#ifdef ALIGNED
    return n > 0 ? *(global const vec *)p : 0.0f;
#endif
    if (n >= PART) /* an aligned part takes one load; vload4 would take four */
        return IS_WHOLE(p) ? *(global const vec *)p : vload_part(0, p);
    float lane[PART];
    for (int i = 0; i < PART; i++)
        lane[i] = i < n ? p[i] : 0.0f;
    return vload_part(0, lane);
}

/* Writes PART floats. */
static inline void store_vec(vec x, global float *p) {
#if MOERT_ITEMS == 1
    STORE_VECTOR(global, float, 16, x, p);
#else
    if (IS_WHOLE(p))
        *(global vec *)p = x;
    else
        vstore_part(x, 0, p);
#endif
}

/* Writes the first n lanes of a step. */
static inline void store_part(vec x, global float *p, int n) {
    p += part_start();
    n -= part_start();
#ifdef ALIGNED
    if (n > 0)
        *(global vec *)p = x;
    return;
#endif
    float lane[PART];
    if (n >= PART) {
        store_vec(x, p);
        return;
    }
    vstore_part(x, 0, lane);
    for (int i = 0; i < PART; i++)
        if (i < n)
            p[i] = lane[i];
}

/* load_part and store_part for BATCH steps. */
static inline void load_batch(vec x[BATCH], global const float *p, int n) {
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        x[i] = load_part(p + i * VEC, n - i * VEC);
}

static inline void store_batch(const vec x[BATCH], global float *p, int n) {
    UNROLL_FOR(int i = 0; i < BATCH; i++)
        store_part(x[i], p + i * VEC, n - i * VEC);
}

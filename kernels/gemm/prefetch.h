/*
 * Prefetches memory into a core's second-level cache, a little at a time while tiles are computed.
 * The hardware prefetchers of a CPU stop at every page, and restart only after the latency of
 * memory.
 */
typedef struct prefetch_plan {
    size_t at, stride;       /* address of the row that is prefetched now; bytes to the next row */
    uint rows, bytes, begun; /* rows left; bytes of each row; bytes of this row prefetched so far */
    int every;               /* dots of a tile between two parts of the prefetch */
    uint part_lines;         /* cache lines in a part */
} prefetch_plan;

/* Prefetches a cache line into the first-level (3) or second-level (2) cache. Of the compilers that
 * make SPIR or SPIR-V, only Intel's for CPUs accepts this function. Mesa's compiler defines
 * __SPIRV64__ only. */
#if defined(__SPIR__) || defined(__SPIRV__) || defined(__SPIRV64__)
#define MAKES_SPIRV 1
#else
#define MAKES_SPIRV 0
#endif
#if MOERT_CPU && defined(__clang__) && (!MAKES_SPIRV || defined(__INTEL_CLANG_COMPILER))
#define PREFETCH(address, cache) __builtin_prefetch((const void *)(size_t)(address), 0, cache)
#else
#define PREFETCH(address, cache)
#endif

enum { PREFETCH_LINE = 64, PREFETCH_NEVER = 1 << 24 /* NEVER: more dots than a tile has */ };

/* Plans a prefetch of `rows` rows of `bytes` bytes, a part every `every` dots. */
static inline prefetch_plan prefetch_rows(size_t at, size_t stride, int rows, size_t bytes,
                                          int every) {
    return (prefetch_plan){at, stride, rows, (uint)bytes, 0, every, 0};
}

static inline prefetch_plan no_prefetch(void) {
    return prefetch_rows(0, 0, 0, 0, PREFETCH_NEVER);
}

/* Divides a prefetch into `parts` parts. */
static inline prefetch_plan in_parts(prefetch_plan p, int parts) {
    const uint lines = p.rows * ((p.bytes + PREFETCH_LINE - 1) / PREFETCH_LINE);
    p.part_lines = (lines + parts - 1) / parts;
    return p;
}

/* Prefetches one part. */
static inline void prefetch_some(prefetch_plan *p) {
    for (uint i = 0; i < p->part_lines && p->rows > 0; i++) {
        PREFETCH(p->at + p->begun, 2);
        p->begun += PREFETCH_LINE;
        if (p->begun >= p->bytes) {
            p->at += p->stride;
            p->begun = 0;
            p->rows--;
        }
    }
}

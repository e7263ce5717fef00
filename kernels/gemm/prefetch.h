/*
 * Memory that is brought to a core's second cache before it is read, a little at a time while tiles
 * are computed. The prefetchers of a CPU stop at every page, and start again at the latency of
 * memory.
 */
typedef struct prefetch_plan {
    size_t at, stride; /* of the row that is brought next, and to the one after it */
    uint rows, bytes,
        begun;  /* rows that are left; bytes of each, and those that were brought of this one */
    int every;  /* terms of a tile between two turns */
    uint share; /* lines of the cache in a turn */
} prefetch_plan;

/* Brings a line to the first cache (3) or the second (2). */
#if MOERT_CPU && defined(__clang__)
#define PREFETCH(address, cache) __builtin_prefetch((const void *)(size_t)(address), 0, cache)
#else
#define PREFETCH(address, cache)
#endif

enum { PREFETCH_LINE = 64, PREFETCH_NEVER = 1 << 24 /* terms */ };

/* `rows` rows of `bytes` bytes, a turn every so many terms. */
static inline prefetch_plan prefetch_rows(size_t at, size_t stride, int rows, size_t bytes,
                                          int every) {
    return (prefetch_plan){at, stride, rows, (uint)bytes, 0, every, 0};
}

static inline prefetch_plan no_prefetch(void) {
    return prefetch_rows(0, 0, 0, 0, PREFETCH_NEVER);
}

/* All of it in so many turns. */
static inline prefetch_plan in_turns(prefetch_plan f, int turns) {
    const uint lines = f.rows * ((f.bytes + PREFETCH_LINE - 1) / PREFETCH_LINE);
    f.share = (lines + turns - 1) / turns;
    return f;
}

/* A turn. */
static inline void prefetch_some(prefetch_plan *f) {
    for (uint i = 0; i < f->share && f->rows > 0; i++) {
        PREFETCH(f->at + f->begun, 2);
        f->begun += PREFETCH_LINE;
        if (f->begun >= f->bytes) {
            f->at += f->stride;
            f->begun = 0;
            f->rows--;
        }
    }
}

/*
 * A probe takes digests of the rows that a layer's pass receives and computes for this rank's
 * experts, so that ranks can compare them (model/audit.h). Digests of rows are those of
 * moert_digest_rows. A layer with a probe does not scatter the results of its GEMMs, because
 * scattered rows would be in no memory of this rank.
 */
#pragma once

#include "layer/block.h"

/* X(NAME, name): rows of the experts, in the order of a pass. The first three are rows of the
 * forward. */
#define MOERT_PROBE_TABLE(X)                                                                       \
    X(ROWS, rows)                                                                                  \
    X(PROB, prob)                                                                                  \
    X(Y, y)                                                                                        \
    X(DY, dy)                                                                                      \
    X(DX, dx)                                                                                      \
    X(DPROB, dprob)

typedef enum moert_probe_point {
#define MOERT_PROBE_POINT(NAME, name) MOERT_PROBE_##NAME,
    MOERT_PROBE_TABLE(MOERT_PROBE_POINT)
#undef MOERT_PROBE_POINT
        MOERT_PROBE_POINTS
} moert_probe_point;

/* A bit to flip, for tests: bit `bit` of word `word`, modulo the number of words. */
typedef struct moert_plant {
    uint64_t word;
    unsigned bit;
} moert_plant;

struct moert_probe {
    bool takes;            /* the probe takes digests; false: the probe only flips bits (`plant`) */
    bool closed[2];        /* whether the hashes of the forward and of the backward are complete */
    moert_buffer *digests; /* uint64 [POINTS, room] */
    size_t room;           /* rows for which `digests` has room */
    uint64_t *hash;        /* [POINTS, slots]: hash of the digests of an expert's rows */
    uint64_t combined[2];  /* hashes of the combined rows of the forward and the backward */
    moert_buffer *scratch; /* their digests */
    const moert_plant *plant[MOERT_PROBE_POINTS]; /* NULL: none */
};

/* Allocates the hashes for a layer of `slots` experts. */
moert_status moert_probe_create(size_t slots, moert_probe **probe);
void moert_probe_destroy(moert_probe *probe); /* NULL is legal */

/* Flips the planted bit in the `words` words of a buffer that start at float `at`. */
moert_status moert_plant_bit(const moert_plant *plant, moert_buffer *buffer, size_t at,
                             size_t words);

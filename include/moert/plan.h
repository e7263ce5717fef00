/*
 * The plan of one exchange: how many rows each rank sends to each rank, and to which positions.
 * Pure integer code on host memory.
 *
 * EP ranks own the E experts in contiguous blocks; the first E mod EP ranks own one expert more
 * than the other ranks. The owner of an expert keeps its received rows expert by expert, and within
 * an expert in global token order (rank-major, then token). So the order does not depend on the
 * number of ranks:
 *
 *   row = rows of that owner's lower experts
 *         + rows of this expert from lower ranks
 *         + position among the sender's rows for this expert
 *
 * A slot with expert index -1 is dropped: dispatch sends no row for it, and combine adds nothing.
 */
#ifndef MOERT_PLAN_H
#define MOERT_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "moert/status.h"

#ifdef __cplusplus
extern "C" {
#endif

#define MOERT_PLAN_DROPPED UINT32_MAX

/* Experts [first, first + count) of E belong to `rank` of EP; count = 0 if there is no such
 * rank. */
MOERT_API void moert_plan_experts(size_t experts, size_t ranks, size_t rank, size_t *first,
                                  size_t *count);
/* The rank of EP that owns an expert; `ranks` if there is no such expert. */
MOERT_API size_t moert_plan_owner(size_t experts, size_t ranks, size_t expert);

/*
 * counts[E] = slots of each expert in index[T,K]. Errors: ERROR_USAGE (an index outside -1..E-1, or
 * a token that chose an expert twice), ERROR_NUMERIC (index -2: the router's scores were
 * non-finite); the message names the token and, for ERROR_USAGE, the slot and the value.
 */
MOERT_API moert_status moert_plan_count(const int32_t *index, size_t tokens, size_t topk,
                                        size_t experts, uint64_t *counts);

typedef struct moert_plan {
    size_t experts, ranks, rank, tokens, topk;
    size_t first_expert, local_experts;
    size_t rows;             /* M: rows this rank receives */
    size_t largest_rows;     /* the largest M of all ranks */
    uint64_t *counts;        /* [ranks,E] slots of each rank for each expert */
    uint64_t *expert_counts; /* [E] slots of all ranks for each expert */
    uint32_t *ends;          /* [local_experts] cumulative ends of the experts' rows on this rank */
    uint32_t *starts;    /* [local_experts] numbers of the experts' first rows on this rank among
                                the expert's rows on all ranks (modulo 2^32) */
    uint32_t *slot_rank; /* [T,K] destination rank, or MOERT_PLAN_DROPPED */
    uint32_t *slot_row;  /* [T,K] destination row in that rank's memory */
    uint32_t *slot_position; /* [T,K] position in the rows sent from here, sorted by rank, then
                                row */
    size_t *send_rows;       /* [ranks] rows from this rank to each rank */
    size_t *receive_rows;    /* [ranks] rows from each rank to this rank */
    struct moert_expert_map *placement; /* private to the library: the slots that hold the
                                           experts */
} moert_plan;

/*
 * Builds the plan of `rank` from its index[T,K] and the counts[ranks,E] of all ranks, and copies
 * index and counts. Without an index (NULL), slot_rank, slot_row and slot_position are NULL.
 * Errors: ERROR_USAGE (the shape), ERROR_MEMORY, ERROR_UNSUPPORTED (2^32 - 1 rows or more on any
 * rank; every rank then returns this error), ERROR_MISMATCH (counts do not fit index).
 */
typedef struct moert_plan_shape {
    size_t experts, ranks, rank, tokens, topk;
} moert_plan_shape;
MOERT_API moert_status moert_plan_create(const moert_plan_shape *shape, const int32_t *index,
                                         const uint64_t *counts, moert_plan **plan);
MOERT_API void moert_plan_destroy(moert_plan *plan);

#ifdef __cplusplus
}
#endif
#endif

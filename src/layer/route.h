/* A route of the public exchange (moert/exchange.h). */
#pragma once

#include "layer/mesh.h"
#include "moert/exchange.h"

struct moert_route {
    moert_mesh *mesh;
    moert_exchange_plan *plan;
    size_t tokens, topk;
    size_t rows;        /* M, including padding rows (row_multiple) */
    bool padded;        /* experts have padding rows */
    moert_buffer *ends; /* uint32 [L] ends of the experts' rows, including padding rows */
    uint64_t *meeting;  /* [ranks][MOERT_MEETING_WORDS] */
};

/* Values that the ranks compare before a call. names[] are the words' names, without the status;
 * NULL ends the list. */
enum { MOERT_MEETING_WORDS = 8 };
typedef struct moert_meeting {
    const char *what;                    /* name of the call, for messages */
    const char *const *names;            /* [MOERT_MEETING_WORDS - 1] */
    uint64_t words[MOERT_MEETING_WORDS]; /* the status, then the words */
} moert_meeting;

/*
 * Waits for this device and then for the other ranks. Fails on all ranks if `local` is a failure on
 * any rank, or if a word differs between ranks. Afterwards no rank uses the windows of earlier
 * calls. Collective over the EP group.
 */
moert_status moert_route_meet(moert_mesh *mesh, moert_meeting *meeting, moert_status local,
                              uint64_t *all);

/* ERROR_USAGE if the buffer `name` is NULL, of another device, or has less than `bytes`. */
moert_status moert_route_check_buffer(const moert_mesh *mesh, const char *name,
                                      const moert_buffer *buffer, size_t bytes);

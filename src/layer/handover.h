/*
 * The state of a mesh for its layers' clones (clones.h): messages, and their memory.
 */
#pragma once

#include "comm/mail.h"

enum { MOERT_LINKS_MOST = MOERT_MAIL_PARTS / 2 };

/* A slot of this rank in the chain of an expert with clones. */
typedef struct moert_chain_link {
    uint32_t expert;
    int tag;
    size_t slot;
    size_t position, last; /* position in the chain; position of the last member */
    size_t home;           /* the position of the expert itself */
} moert_chain_link;

typedef struct moert_handover {
    moert_mail *mail;
    moert_chain_link links[MOERT_LINKS_MOST]; /* links of the layer that is computing */
    size_t count;
    float *in, *out;      /* received and sent values: [count,elements] of each tensor */
    size_t room;          /* floats of `in`, and of `out` */
    moert_status *status; /* status of the call in progress. After a failure of this rank's device,
                             the rank still sends and receives, so that no other rank blocks */
} moert_handover;

/* NULL is legal. */
void moert_handover_free(moert_handover *handover);

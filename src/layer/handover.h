/*
 * What a mesh keeps for the clones of its layers' experts (clones.h): messages, and memory for
 * them.
 */
#pragma once

#include "comm/mail.h"

enum { MOERT_LINKS_MOST = MOERT_MAIL_PARTS / 2 };

/* A slot of this rank in the chain of an expert with clones. */
typedef struct moert_chain_link {
    uint32_t expert;
    int tag;
    size_t slot;
    size_t position, last; /* in the chain */
    size_t home;           /* the position of the expert itself */
} moert_chain_link;

typedef struct moert_handover {
    moert_mail *mail;
    moert_chain_link links[MOERT_LINKS_MOST]; /* of the layer at work */
    size_t count;
    float *in, *out; /* values that arrive, and that are sent: [count,elements] of each tensor */
    size_t room;     /* floats of each */
    moert_status *status; /* of the call under way: after a failure of this rank's device, messages
                             still travel, so that no other rank blocks */
} moert_handover;

/* NULL is legal. */
void moert_handover_free(moert_handover *handover);

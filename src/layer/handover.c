/* Frees a mesh's state for clones. */
#include "layer/handover.h"

#include "base/memory.h"

void moert_handover_free(moert_handover *handover) {
    if (handover == NULL)
        return;
    moert_mail_destroy(handover->mail);
    MOERT_FREE(handover->in, handover->out, handover);
}

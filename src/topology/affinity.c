/* Saves and restores the affinity of a process's threads. */
#include <sched.h>
#include <stdlib.h>

#include "base/memory.h"
#include "topology/topology.h"

struct moert_affinity {
    moert_thread_snapshot threads;
    cpu_set_t *masks; /* [threads.count]; an empty mask: not known */
};

moert_status moert_affinity_save(moert_affinity **affinity) {
    moert_affinity *made;
    moert_status status;
    MOERT_TRY(MOERT_NEW(&made));
    MOERT_TRY_OR(fail, moert_threads_snapshot(&made->threads));
    MOERT_TRY_OR(fail, MOERT_NEW_ARRAY(&made->masks, made->threads.count));
    for (size_t i = 0; i < made->threads.count; i++)
        if (sched_getaffinity(made->threads.ids[i], sizeof *made->masks, &made->masks[i]) != 0)
            CPU_ZERO(&made->masks[i]); /* the thread has ended, or its mask exceeds cpu_set_t */
    *affinity = made;
    return MOERT_OK;
fail:
    MOERT_FREE(made->threads.ids, made);
    return status;
}

void moert_affinity_restore(moert_affinity *affinity) {
    if (affinity == NULL)
        return;
    for (size_t i = 0; i < affinity->threads.count; i++)
        if (CPU_COUNT(&affinity->masks[i]) > 0)
            sched_setaffinity(affinity->threads.ids[i], sizeof *affinity->masks,
                              &affinity->masks[i]);
    MOERT_FREE(affinity->masks, affinity->threads.ids, affinity);
}

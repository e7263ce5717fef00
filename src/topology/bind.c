/* Binds the process, and pins the threads that a library has started, to the cores of a
 * placement. */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include <hwloc/linux.h>

#include "base/log.h"
#include "base/memory.h"
#include "topology/internal.h"

static moert_status parse(const moert_placement *placement, hwloc_bitmap_t *set) {
    MOERT_TRY(moert_topology_bitmap(set));
    if (hwloc_bitmap_list_sscanf(*set, placement->cpus) == 0 && !hwloc_bitmap_iszero(*set))
        return MOERT_OK;
    hwloc_bitmap_free(*set);
    return MOERT_FAIL(ERROR_INTERNAL, "'%s' is not a list of processors", placement->cpus);
}

moert_status moert_topology_bind(const moert_topology *topology, const moert_placement *placement) {
    if (!topology->here)
        return MOERT_OK;
    moert_status status = MOERT_OK;
    hwloc_bitmap_t set;
    MOERT_TRY(parse(placement, &set));
    if (hwloc_set_cpubind(topology->tree, set, HWLOC_CPUBIND_PROCESS) != 0)
        status = MOERT_FAIL(ERROR_TOPOLOGY, "cannot bind to the processors %s: %s; see MOERT_BIND",
                            placement->cpus, strerror(errno));
    hwloc_bitmap_free(set);
    return status;
}

static int compare_ids(const void *a, const void *b) {
    int first = *(const int *)a, second = *(const int *)b;
    return (first > second) - (first < second);
}

moert_status moert_threads_snapshot(moert_thread_snapshot *snapshot) {
    moert_status status = MOERT_OK;
    moert_thread_snapshot list = {0};
    size_t room = 0;
    DIR *tasks = opendir("/proc/self/task");
    if (tasks == NULL)
        return MOERT_FAIL(ERROR_TOPOLOGY, "cannot list /proc/self/task: %s", strerror(errno));
    const struct dirent *entry;
    while ((entry = readdir(tasks)) != NULL)
        if (isdigit((unsigned char)entry->d_name[0])) {
            MOERT_TRY_OR(close_tasks, MOERT_GROW(&list.ids, &room, list.count + 1));
            list.ids[list.count++] = atoi(entry->d_name);
        }
    if (list.count > 0)
        qsort(list.ids, list.count, sizeof *list.ids, compare_ids);
    *snapshot = list;

close_tasks:
    closedir(tasks);
    if (status != MOERT_OK)
        free(list.ids);
    return status;
}

/* Pins thread `id` to a core, within the placement's set. A thread that has ended is no error. */
static moert_status pin(const moert_topology *topology, hwloc_const_bitmap_t set, hwloc_obj_t core,
                        int id, size_t *pinned) {
    hwloc_bitmap_t cpus;
    MOERT_TRY(moert_topology_bitmap(&cpus));
    hwloc_bitmap_and(cpus, core->cpuset, set);
    int code = hwloc_linux_set_tid_cpubind(topology->tree, id, cpus) != 0 ? errno : 0;
    hwloc_bitmap_free(cpus);
    if (code != 0 && code != ESRCH)
        return MOERT_FAIL(ERROR_TOPOLOGY, "cannot pin thread %d to core %u: %s; see MOERT_BIND", id,
                          core->logical_index, strerror(code));
    *pinned += code == 0;
    return MOERT_OK;
}

static moert_status pin_others(const moert_topology *topology, const moert_placement *placement,
                               const moert_thread_snapshot *before,
                               const moert_thread_snapshot *now, size_t *pinned) {
    moert_status status = MOERT_OK;
    hwloc_bitmap_t set;
    MOERT_TRY(parse(placement, &set));
    hwloc_obj_t core = NULL;
    size_t done = 0;
    for (size_t i = 0; i < now->count; i++) {
        if (bsearch(&now->ids[i], before->ids, before->count, sizeof *before->ids, compare_ids))
            continue;
        core = moert_topology_next_core(topology, set, core);
        if (core == NULL) /* more threads than cores: continue with the first core */
            core = moert_topology_next_core(topology, set, NULL);
        if (core == NULL) {
            status = MOERT_FAIL(ERROR_INTERNAL, "no core holds the processors %s", placement->cpus);
            goto free_set;
        }
        MOERT_TRY_OR(free_set, pin(topology, set, core, now->ids[i], &done));
    }
    *pinned = done;
    MOERT_DEBUG("pinned %zu threads to the processors %s", done, placement->cpus);
free_set:
    hwloc_bitmap_free(set);
    return status;
}

moert_status moert_threads_pin_new(const moert_topology *topology, const moert_placement *placement,
                                   moert_thread_snapshot *snapshot, size_t *pinned) {
    moert_status status = MOERT_OK;
    moert_thread_snapshot now = {0};
    if (topology->here) {
        MOERT_TRY_OR(free_snapshot, moert_threads_snapshot(&now));
        MOERT_TRY_OR(free_snapshot, pin_others(topology, placement, snapshot, &now, pinned));
    } else {
        *pinned = 0;
    }
free_snapshot:
    MOERT_FREE(now.ids, snapshot->ids);
    *snapshot = (moert_thread_snapshot){0};
    return status;
}

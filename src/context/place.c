/* Places and binds a rank, and opens its device, in the order that PoCL needs. */
#include "context/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "comm/launcher.h"
#include "device/device.h"

/* State that the contexts of this process share: the number of bound contexts, and the threads'
 * affinity before the first was bound. */
static struct {
    size_t bound;
    moert_affinity *before;
} process;

moert_status moert_context_gather(moert_comm *comm, const void *mine, size_t bytes, void *out) {
    void *all = NULL;
    moert_status status = moert_comm_agree(comm, moert_alloc(&all, moert_comm_size(comm), bytes));
    if (status == MOERT_OK)
        status = moert_comm_agree(comm, moert_comm_allgather(comm, mine, bytes, all));
    if (status == MOERT_OK)
        memcpy(out, &all, sizeof all);
    else
        free(all);
    return status;
}

/* Gathers the binding masks of this host's ranks, in rank order. The caller frees *masks.
 * Collective. */
static moert_status gather_masks(moert_comm *comm, const moert_topology *topology,
                                 char (**masks)[MOERT_CPUS_BYTES]) {
    size_t size = moert_comm_size(comm), count = 0;
    char mine[MOERT_CPUS_BYTES] = "", (*all)[MOERT_CPUS_BYTES];
    MOERT_TRY(moert_comm_agree(comm, moert_topology_mask_text(topology, mine, sizeof mine)));
    MOERT_TRY(moert_context_gather(comm, mine, sizeof mine, &all));
    for (size_t r = 0; r < size; r++)
        if (strcmp(moert_comm_host(comm, r), moert_comm_host(comm, moert_comm_rank(comm))) == 0)
            memmove(all[count++], all[r], sizeof *all);
    *masks = all;
    return MOERT_OK;
}

static moert_status bind(moert_context *context, const moert_topology *topology) {
    if (process.bound == 0)
        MOERT_TRY(moert_affinity_save(&process.before));
    process.bound++;
    context->bound = true;
    return moert_topology_bind(topology, &context->placement);
}

void moert_context_unbind(const moert_context *context) {
    if (!context->bound || --process.bound > 0)
        return;
    moert_affinity_restore(process.before);
    process.before = NULL;
}

/* Opens the device and binds its worker threads. PoCL reads the number of threads and starts them
 * when its platform is first queried. */
static moert_status open_bound(moert_context *context, const moert_topology *topology,
                               size_t local_rank) {
    const moert_config *config = moert_config_get();
    const bool first = process.bound == 0; /* a later context finds the binding mask that moert
                                              has set, not the launcher's mask */
    moert_placement *placement = &context->placement;
    moert_thread_snapshot snapshot;
    char threads[16];
    size_t pinned;
    MOERT_TRY(bind(context, topology));
    MOERT_DEBUG("this rank runs on cpus %s%s%s%s", placement->cpus,
                placement->pci[0] != '\0' ? ", near GPU " : "", placement->pci,
                placement->shared ? "; other ranks use the same cpus" : "");
    if (placement->confined && first && moert_comm_rank(context->comm) == 0)
        MOERT_WARN("the launcher has bound rank 0: moert keeps its ranks within that binding, rank "
                   "0 on cpus %s; with mpirun --bind-to none moert places the ranks itself",
                   placement->cpus);
    snprintf(threads, sizeof threads, "%u",
             config->threads > 0 ? config->threads : placement->cpu_count);
    setenv("POCL_MAX_PTHREAD_COUNT", threads, 0);
    MOERT_TRY(moert_threads_snapshot(&snapshot));
    moert_status status =
        moert_device_open(config->device, placement->pci, (unsigned)local_rank, &context->device);
    return moert_first(status, moert_threads_pin_new(topology, placement, &snapshot, &pinned));
}

/* The number of this rank among the processes that divide its host, and the binding masks that the
 * launcher gave these processes. */
typedef struct place {
    size_t rank, size;
    char (*masks)[MOERT_CPUS_BYTES]; /* [size] the processes' masks; NULL: all masks are equal */
} place;

static bool all_equal(const place *at) {
    for (size_t i = 1; i < at->size; i++)
        if (strcmp(at->masks[i], at->masks[0]) != 0)
            return false;
    return true;
}

/* Finds this rank's number among the processes that divide its host. If the caller has given a
 * communicator for the placement, the ranks of `comm` divide the host. Otherwise all processes that
 * the launcher started on the host divide it, although some of these processes may belong to other
 * contexts. */
static void find_share(const moert_context *context, const moert_comm *comm, place *at) {
    size_t rank, size;
    *at = (place){moert_comm_node_rank(comm), moert_comm_node_size(comm), NULL};
    if (context->options.placement == NULL && moert_config_get()->node_ranks == 0 &&
        moert_launcher_local(&rank, &size) && size > at->size)
        *at = (place){rank, size, NULL};
}

/* Like find_share(), but also gathers the ranks' masks. If the masks differ, the launcher has bound
 * the ranks of `comm` to different cores; then only the ranks of `comm` divide the host. */
static moert_status find_place(const moert_context *context, moert_comm *comm,
                               const moert_topology *topology, place *at) {
    place wide;
    *at = (place){moert_comm_node_rank(comm), moert_comm_node_size(comm), NULL};
    MOERT_TRY(gather_masks(comm, topology, &at->masks));
    find_share(context, comm, &wide);
    if (wide.size == at->size || !all_equal(at))
        return MOERT_OK;
    free(at->masks);
    *at = wide;
    return MOERT_OK;
}

/* *comm = the communicator of the processes that divide their hosts, which the caller releases by
 * leave_placement(). */
static moert_status placement_comm(moert_context *context, moert_comm **comm) {
    *comm = context->comm;
    if (context->options.placement == NULL)
        return MOERT_OK;
    *comm = NULL;
    return moert_comm_agree(context->comm, moert_comm_create(context->options.placement, comm));
}

static void leave_placement(const moert_context *context, moert_comm *comm) {
    if (comm != context->comm)
        moert_comm_destroy(comm);
}

static moert_status place_and_open(moert_context *context) {
    const moert_config *config = moert_config_get();
    moert_topology *topology = NULL;
    moert_comm *comm = NULL;
    place at = {0};
    bool wants_gpu = strcmp(config->device, "cpu") != 0 && strcasecmp(config->device, "pocl") != 0;
    moert_status status = moert_topology_create(config->topology, &topology);
    MOERT_TRY_OR(done, moert_comm_agree(context->comm, status));
    moert_topology_describe(topology, context->topology, sizeof context->topology);
    MOERT_TRY_OR(done, placement_comm(context, &comm));
    MOERT_TRY_OR(done, find_place(context, comm, topology, &at));
    MOERT_TRY_OR(done, moert_topology_place(topology, at.rank, at.size,
                                            (const char(*)[MOERT_CPUS_BYTES])at.masks, wants_gpu,
                                            &context->placement));
    MOERT_TRY_OR(done, open_bound(context, topology, at.rank));
done:
    leave_placement(context, comm);
    free(at.masks);
    moert_topology_destroy(topology);
    return status;
}

static moert_status open_unbound(moert_context *context) {
    const moert_config *config = moert_config_get();
    char threads[16];
    moert_comm *comm;
    place at;
    snprintf(threads, sizeof threads, "%u", config->threads);
    if (config->threads > 0)
        setenv("POCL_MAX_PTHREAD_COUNT", threads, 0);
    MOERT_TRY(placement_comm(context, &comm));
    find_share(context, comm, &at);
    leave_placement(context, comm);
    return moert_device_open(config->device, NULL, (unsigned)at.rank, &context->device);
}

/* How a rank gets its device. */
enum { ORIGIN_UNBOUND, ORIGIN_BOUND, ORIGIN_CALLER };

static void print_origin(const void *origin, FILE *file) {
    static const char *const names[] = {"MOERT_BIND=0", "MOERT_BIND=1", "a device of the caller"};
    fprintf(file, "%s%c", names[*(const int *)origin], 0);
}

moert_status moert_context_open_device(moert_context *context) {
    const moert_config *config = moert_config_get();
    const moert_context_options *options = &context->options;
    const bool given =
        options->cl_context != NULL || options->cl_device != NULL || options->cl_queue != NULL;
    const bool binds = options->binding == MOERT_BINDING_VARIABLE
                           ? config->bind != 0
                           : options->binding == MOERT_BINDING_ON;
    const int origin = given ? ORIGIN_CALLER : binds ? ORIGIN_BOUND : ORIGIN_UNBOUND;
    MOERT_TRY(moert_comm_compare(context->comm, print_origin, &origin, MOERT_ERROR_USAGE,
                                 "all ranks must get their devices in the same way"));
    if (origin == ORIGIN_CALLER)
        return moert_device_adopt(options->cl_context, options->cl_device, options->cl_queue,
                                  &context->device);
    if (origin == ORIGIN_BOUND)
        return place_and_open(context);
    return open_unbound(context);
}

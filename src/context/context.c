/* Binds a rank, opens its device and starts its watchdog, in the order that PoCL needs. */
#include "context/context.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "comm/launcher.h"
#include "comm/watchdog/watchdog.h"

struct moert_context {
    moert_comm *comm;
    moert_device *device;
    moert_watchdog *watchdog;
    moert_placement placement;
    char topology[256];
    char *difference;
    moert_context_options options;
    bool bound; /* counts in `process` */
};

/* What the contexts of this process share: their number that are bound, and the threads' affinity
 * before the first. */
static struct {
    size_t bound;
    moert_affinity *before;
} process;

/* Gathers the `bytes` bytes at `mine` of every rank, in rank order. *out = the result, which the
 * caller frees. All ranks return the same failure. Collective. */
static moert_status gather(moert_comm *comm, const void *mine, size_t bytes, void *out) {
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
    MOERT_TRY(gather(comm, mine, sizeof mine, &all));
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

static void unbind(const moert_context *context) {
    if (!context->bound || --process.bound > 0)
        return;
    moert_affinity_restore(process.before);
    process.before = NULL;
}

/* Opens the device and binds its worker threads. PoCL reads their number and starts them when its
 * platform is first queried. */
static moert_status open_bound(moert_context *context, const moert_topology *topology,
                               size_t local_rank) {
    const moert_config *config = moert_config_get();
    const bool first = process.bound == 0; /* later ones find moert's mask, not the launcher's */
    moert_placement *placement = &context->placement;
    moert_thread_snapshot snapshot;
    char threads[16];
    size_t pinned;
    MOERT_TRY(bind(context, topology));
    MOERT_DEBUG("runs on cpus %s%s%s%s", placement->cpus,
                placement->pci[0] != '\0' ? ", near GPU " : "", placement->pci,
                placement->shared ? ", shared with other ranks" : "");
    if (placement->confined && first && moert_comm_rank(context->comm) == 0)
        MOERT_WARN("the launcher has bound rank 0: moert stays inside, on cpus %s; with mpirun "
                   "--bind-to none it places the ranks itself",
                   placement->cpus);
    snprintf(threads, sizeof threads, "%u",
             config->threads > 0 ? config->threads : placement->cpu_count);
    setenv("POCL_MAX_PTHREAD_COUNT", threads, 0);
    MOERT_TRY(moert_threads_snapshot(&snapshot));
    moert_status status =
        moert_device_open(config->device, placement->pci, (unsigned)local_rank, &context->device);
    return moert_first(status, moert_threads_pin_new(topology, placement, &snapshot, &pinned));
}

/* The place of this rank among the processes that divide its host. */
typedef struct place {
    size_t rank, size;
    char (*masks)[MOERT_CPUS_BYTES]; /* [size]; NULL: all the same */
} place;

static bool all_equal(const place *at) {
    for (size_t i = 1; i < at->size; i++)
        if (strcmp(at->masks[i], at->masks[0]) != 0)
            return false;
    return true;
}

/* Finds the place among the ranks of `comm`. If the launcher tells of more processes on this host,
 * and has not bound them, the place is among these: they may form other contexts. */
static moert_status find_place(moert_comm *comm, const moert_topology *topology, bool given,
                               place *at) {
    size_t rank, size;
    *at = (place){moert_comm_node_rank(comm), moert_comm_node_size(comm), NULL};
    MOERT_TRY(gather_masks(comm, topology, &at->masks));
    if (given || moert_config_get()->node_ranks > 0 || !moert_launcher_local(&rank, &size) ||
        size <= at->size || !all_equal(at))
        return MOERT_OK;
    free(at->masks);
    *at = (place){rank, size, NULL};
    return MOERT_OK;
}

/* *comm = the communicator of the processes that divide their hosts, to be destroyed if it is not
 * the context's. */
static moert_status placement_comm(moert_context *context, moert_comm **comm) {
    *comm = context->comm;
    if (context->options.placement == NULL)
        return MOERT_OK;
    *comm = NULL;
    return moert_comm_agree(context->comm, moert_comm_create(context->options.placement, comm));
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
    MOERT_TRY_OR(done, find_place(comm, topology, context->options.placement != NULL, &at));
    MOERT_TRY_OR(done, moert_topology_place(topology, at.rank, at.size,
                                            (const char(*)[MOERT_CPUS_BYTES])at.masks, wants_gpu,
                                            &context->placement));
    MOERT_TRY_OR(done, open_bound(context, topology, at.rank));
done:
    if (comm != context->comm)
        moert_comm_destroy(comm);
    free(at.masks);
    moert_topology_destroy(topology);
    return status;
}

/* The origin of a rank's device. */
enum { ORIGIN_UNBOUND, ORIGIN_BOUND, ORIGIN_CALLER };

static void print_origin(const void *origin, FILE *file) {
    static const char *const names[] = {"MOERT_BIND=0", "MOERT_BIND=1", "a device of the caller"};
    fprintf(file, "%s%c", names[*(const int *)origin], 0);
}

/* All ranks must take the same path, since the paths contain collective calls. Collective. */
static moert_status open_device(moert_context *context, const moert_context_options *options) {
    const moert_config *config = moert_config_get();
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
    char threads[16];
    snprintf(threads, sizeof threads, "%u", config->threads);
    if (config->threads > 0)
        setenv("POCL_MAX_PTHREAD_COUNT", threads, 0);
    return moert_device_open(config->device, NULL, (unsigned)moert_comm_node_rank(context->comm),
                             &context->device);
}

/* How a rank sums bf16 GEMMs. */
typedef enum bf16_sums { SUMS_ONE_BY_ONE, SUMS_IN_TILES, SUMS_IN_TILES_BY_OPTION } bf16_sums;

moert_status moert_context_settle_tiles(moert_comm *comm, moert_device *device) {
    const size_t ranks = moert_comm_size(comm);
    const bool required = moert_config_get()->bf16 == MOERT_BF16_TILES;
    const bf16_sums mine = !moert_device_sums_in_tiles(moert_device_describe(device))
                               ? SUMS_ONE_BY_ONE
                           : required ? SUMS_IN_TILES_BY_OPTION
                                      : SUMS_IN_TILES;
    size_t first[] = {ranks, ranks, ranks}; /* the first rank of each kind */
    unsigned char *all, byte = (unsigned char)mine;
    MOERT_TRY(gather(comm, &byte, 1, &all));
    for (size_t r = ranks; r-- > 0;)
        first[all[r]] = r;
    free(all);
    if (first[SUMS_ONE_BY_ONE] < ranks && first[SUMS_IN_TILES_BY_OPTION] < ranks)
        return MOERT_FAIL(ERROR_USAGE,
                          "rank %zu sums bf16 in tiles, as MOERT_BF16 says, but rank %zu does not; "
                          "set MOERT_BF16 alike on all ranks, all on CPUs",
                          first[SUMS_IN_TILES_BY_OPTION], first[SUMS_ONE_BY_ONE]);
    if (first[SUMS_ONE_BY_ONE] == ranks || mine != SUMS_IN_TILES)
        return MOERT_OK;
    moert_device_disable_tiles(device);
    if (moert_comm_rank(comm) == first[SUMS_IN_TILES])
        MOERT_WARN("bf16 GEMMs run without AMX, since rank %zu has none or does not use it",
                   first[SUMS_ONE_BY_ONE]);
    return MOERT_OK;
}

/* Looks for differences of this rank's device to CPUs with other drivers. Logs those of the first
 * rank that has any. Collective. */
static moert_status find_difference(moert_context *context) {
    const size_t rank = moert_comm_rank(context->comm);
    MOERT_TRY(moert_comm_agree(context->comm,
                               moert_device_difference(context->device, &context->difference)));
    uint64_t first = context->difference[0] != '\0' ? rank : UINT64_MAX;
    MOERT_TRY(moert_comm_smallest(context->comm, &first));
    if (first == rank)
        MOERT_INFO("digits may differ from those of CPUs with other OpenCL drivers: %s",
                   context->difference);
    return MOERT_OK;
}

enum { LONGEST_TIMEOUT_S = 86400 };
static const char engine_words[] = "auto" MOERT_ENGINE_TABLE(MOERT_TABLE_WORD);

/* *taken = the options; given NULL: the defaults. */
static moert_status take_options(const moert_context_options *given, moert_context_options *taken) {
    const moert_context_options defaults = MOERT_CONTEXT_OPTIONS_INIT;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_context_options, MOERT_CONTEXT_OPTIONS_INIT, taken,
                                 given != NULL ? given : &defaults));
    if (taken->engine != NULL && moert_choice_index(engine_words, taken->engine) < 0)
        return MOERT_FAIL(ERROR_USAGE, "engine of a context is '%s'; one of %s", taken->engine,
                          engine_words);
    if ((unsigned)taken->binding > MOERT_BINDING_ON)
        return MOERT_FAIL(ERROR_USAGE, "binding of a context is %d; at most %d",
                          (int)taken->binding, MOERT_BINDING_ON);
    if (taken->timeout_s < -1 || taken->timeout_s > LONGEST_TIMEOUT_S)
        return MOERT_FAIL(ERROR_USAGE, "timeout_s of a context is %d; -1 to %d", taken->timeout_s,
                          LONGEST_TIMEOUT_S);
    return moert_config_check();
}

static void print_options(const void *options, FILE *file) {
    const moert_context_options *o = options;
    fprintf(file, "engine=%s%c", o->engine != NULL ? o->engine : "(MOERT_EXCHANGE)", 0);
    fprintf(file, "binding=%d%c", (int)o->binding, 0);
    fprintf(file, "timeout_s=%d%c", o->timeout_s, 0);
    fprintf(file, "placement=%s%c", o->placement != NULL ? "a communicator" : "NULL", 0);
}

static void print_variables(const void *unused, FILE *file) {
    moert_variable v;
    (void)unused;
    for (size_t i = 0; moert_config_variable(i, &v); i++)
        if (v.agree)
            fprintf(file, "%s=%s%c", v.name, v.value != NULL ? v.value : v.standard, 0);
}

moert_status moert_context_create(MPI_Comm comm, const moert_context_options *options,
                                  moert_context **context) {
    if (comm == MPI_COMM_NULL)
        return MOERT_FAIL(ERROR_USAGE, "moert_context_create: comm is MPI_COMM_NULL");
    MOERT_REQUIRE(context);
    return moert_context_open(&comm, options, true, context);
}

moert_status moert_context_open(const void *comm, const moert_context_options *options,
                                bool same_variables, moert_context **context) {
    moert_context *made = NULL;
    moert_comm *world;
    moert_status status;
    MOERT_TRY(moert_comm_create(comm, &world));
    status = moert_comm_agree(world, MOERT_NEW(&made));
    if (status != MOERT_OK) {
        moert_comm_destroy(world);
        free(made);
        return status;
    }
    made->comm = world;
    moert_log_set_rank((int)moert_comm_rank(world), (int)moert_comm_size(world));
    moert_context_options *taken = &made->options;
    MOERT_TRY_OR(fail, moert_comm_agree(made->comm, take_options(options, taken)));
    MOERT_TRY_OR(fail, moert_comm_compare(made->comm, print_options, taken, MOERT_ERROR_USAGE,
                                          "all ranks must create the context alike"));
    if (taken->log != NULL)
        moert_log_set_sink(taken->log, taken->log_user);
    if (same_variables)
        MOERT_TRY_OR(fail, moert_comm_compare(made->comm, print_variables, NULL, MOERT_ERROR_USAGE,
                                              "all ranks must have the same variables"));
    MOERT_TRY_OR(fail, moert_comm_agree(made->comm, open_device(made, taken)));
    MOERT_TRY_OR(fail, moert_context_settle_tiles(made->comm, made->device));
    MOERT_TRY_OR(fail, find_difference(made));
    const unsigned timeout_s =
        taken->timeout_s < 0 ? moert_config_get()->timeout_s : (unsigned)taken->timeout_s;
    MOERT_TRY_OR(fail, moert_watchdog_start(made->comm, timeout_s, &made->watchdog));
    if (taken->watch != NULL)
        moert_watchdog_set_sink(made->watchdog, taken->watch, taken->watch_user);
    *context = made;
    return MOERT_OK;
fail:
    moert_context_destroy(made);
    return status;
}

void moert_context_destroy(moert_context *context) {
    if (context == NULL)
        return;
    moert_watchdog_stop(context->watchdog);
    moert_device_close(context->device);
    moert_comm_destroy(context->comm);
    unbind(context);
    if (context->options.log != NULL)
        moert_log_set_sink(NULL, NULL);
    MOERT_FREE(context->difference, context);
}

moert_status moert_context_pause_watch(moert_context *context, bool paused) {
    MOERT_REQUIRE(context);
    moert_watchdog_pause(context->watchdog, paused);
    return MOERT_OK;
}

moert_status moert_context_set_timeout(moert_context *context, unsigned seconds) {
    MOERT_REQUIRE(context);
    if (seconds > LONGEST_TIMEOUT_S)
        return MOERT_FAIL(ERROR_USAGE, "a timeout of %u s; at most %d", seconds, LONGEST_TIMEOUT_S);
    moert_watchdog_set_timeout(context->watchdog, seconds);
    return MOERT_OK;
}

unsigned moert_context_exchange(const moert_context *context) {
    const char *engine = context->options.engine;
    return engine != NULL ? (unsigned)moert_choice_index(engine_words, engine)
                          : moert_config_get()->exchange;
}

size_t moert_context_rank(const moert_context *context) {
    return context != NULL ? moert_comm_rank(context->comm) : 0;
}

size_t moert_context_size(const moert_context *context) {
    return context != NULL ? moert_comm_size(context->comm) : 0;
}

moert_device *moert_context_device(const moert_context *context) {
    return context != NULL ? context->device : NULL;
}

moert_comm *moert_context_comm(const moert_context *context) {
    return context->comm;
}

const moert_placement *moert_context_placement(const moert_context *context) {
    return &context->placement;
}

const char *moert_context_topology(const moert_context *context) {
    return context->topology;
}

const char *moert_context_difference(const moert_context *context) {
    return context->difference;
}

bool moert_context_is_watched(const moert_context *context) {
    return moert_watchdog_is_on(context->watchdog);
}

bool moert_context_claim_report(moert_context *context) {
    return context == NULL || moert_watchdog_claim(context->watchdog);
}

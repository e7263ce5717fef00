/* Creates contexts: compares options and variables, opens the device, starts the watchdog. */
#include "context/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "base/options.h"
#include "device/arithmetic.h"
#include "device/device.h"

/* How a rank sums the products of bf16 GEMMs. BY_OPTION: the rank sums in tiles because
 * MOERT_BF16=tiles requires that. LACKS_TILES: MOERT_BF16=tiles requires tiles, but the rank's
 * kernels cannot use them. */
typedef enum bf16_sums {
    SUMS_ONE_BY_ONE,
    SUMS_IN_TILES,
    SUMS_IN_TILES_BY_OPTION,
    LACKS_TILES
} bf16_sums;

moert_status moert_context_settle_tiles(moert_comm *comm, moert_device *device) {
    const size_t ranks = moert_comm_size(comm);
    const bool required = moert_config_get()->bf16 == MOERT_BF16_TILES;
    const bool in_tiles = moert_device_sums_in_tiles(moert_device_describe(device));
    const bf16_sums mine = required   ? in_tiles ? SUMS_IN_TILES_BY_OPTION : LACKS_TILES
                           : in_tiles ? SUMS_IN_TILES
                                      : SUMS_ONE_BY_ONE;
    size_t first[] = {ranks, ranks, ranks, ranks}; /* the first rank with each value of bf16_sums */
    unsigned char *all, byte = (unsigned char)mine;
    MOERT_TRY(moert_context_gather(comm, &byte, 1, &all));
    for (size_t r = ranks; r-- > 0;)
        first[all[r]] = r;
    free(all);
    if (first[LACKS_TILES] < ranks)
        return MOERT_FAIL(ERROR_USAGE,
                          "MOERT_BF16=tiles needs kernels in CPU form, but the device of rank %zu "
                          "takes the GPU form; unset MOERT_BF16, or set MOERT_DEVICE=cpu",
                          first[LACKS_TILES]);
    if (first[SUMS_ONE_BY_ONE] < ranks && first[SUMS_IN_TILES_BY_OPTION] < ranks)
        return MOERT_FAIL(ERROR_USAGE,
                          "rank %zu sums bf16 in tiles, as MOERT_BF16 says, but rank %zu does not; "
                          "set MOERT_BF16 alike on all ranks",
                          first[SUMS_IN_TILES_BY_OPTION], first[SUMS_ONE_BY_ONE]);
    if (first[SUMS_ONE_BY_ONE] == ranks || mine != SUMS_IN_TILES)
        return MOERT_OK;
    moert_device_disable_tiles(device);
    if (moert_comm_rank(comm) == first[SUMS_IN_TILES])
        MOERT_WARN("bf16 GEMMs run without AMX, since rank %zu has none or does not use it",
                   first[SUMS_ONE_BY_ONE]);
    return MOERT_OK;
}

/* Finds how the arithmetic of this rank's device differs from that of CPUs with other drivers. Logs
 * the difference of the first rank that has one. Collective. */
static moert_status find_difference(moert_context *context) {
    const size_t rank = moert_comm_rank(context->comm);
    MOERT_TRY(moert_comm_agree(context->comm,
                               moert_device_difference(context->device, &context->difference)));
    uint64_t first = context->difference[0] != '\0' ? rank : UINT64_MAX;
    MOERT_TRY(moert_comm_smallest(context->comm, &first));
    if (first == rank)
        MOERT_INFO("the last digits of results may differ from those on CPUs with other OpenCL "
                   "drivers: %s",
                   context->difference);
    return MOERT_OK;
}

enum { LONGEST_TIMEOUT_S = 86400 };
static const char engine_words[] = "auto" MOERT_ENGINE_TABLE(MOERT_TABLE_WORD);

/* Sets *taken to the given options, or to the defaults if `given` is NULL, and checks them. */
static moert_status take_options(const moert_context_options *given, moert_context_options *taken) {
    const moert_context_options defaults = MOERT_CONTEXT_OPTIONS_INIT;
    MOERT_TRY(MOERT_OPTIONS_TAKE(moert_context_options, MOERT_CONTEXT_OPTIONS_INIT, taken,
                                 given != NULL ? given : &defaults));
    if (taken->engine != NULL && moert_choice_index(engine_words, taken->engine) < 0)
        return MOERT_FAIL(ERROR_USAGE, "engine of a context is '%s'; expected one of %s",
                          taken->engine, engine_words);
    if ((unsigned)taken->binding > MOERT_BINDING_ON)
        return MOERT_FAIL(ERROR_USAGE, "binding of a context is %d; expected 0 to %d",
                          (int)taken->binding, MOERT_BINDING_ON);
    if (taken->timeout_s < -1 || taken->timeout_s > LONGEST_TIMEOUT_S)
        return MOERT_FAIL(ERROR_USAGE, "timeout_s of a context is %d; expected -1 to %d",
                          taken->timeout_s, LONGEST_TIMEOUT_S);
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
    MOERT_TRY_OR(fail, moert_comm_agree(made->comm, moert_context_open_device(made)));
    MOERT_TRY_OR(fail, moert_context_settle_tiles(made->comm, made->device));
    MOERT_TRY_OR(fail, find_difference(made));
    if (moert_device_describe(made->device)->is_gpu)
        moert_clock_stay_awake();
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
    moert_context_unbind(context);
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
        return MOERT_FAIL(ERROR_USAGE, "the timeout is %u s, above the limit of %d s", seconds,
                          LONGEST_TIMEOUT_S);
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

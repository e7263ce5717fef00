/*
 * Ranks of one host: a window is a segment per rank of memory that the kernels of every rank write
 * and read by address (moert_exchange_memory). No row is copied twice, none is packed.
 *
 * OpenCL does not promise that a kernel's stores reach other processes, so opening the engine tests
 * it. A dispatch and a combine synchronise once each (pass). Either the hosts wait for their
 * devices and then for each other; or the devices wait for each other (exchange/flags.h), and the
 * hosts agree on their status only, ahead of them: a kernel waits only for those that all hosts are
 * enqueuing. Then a move of few rows is one kernel with the meeting inside (move_fused), as each
 * launch and each kernel that only waits take longer than the rows do.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/config.h"
#include "base/log.h"
#include "base/memory.h"
#include "exchange/flags.h"

/* Beside a combine products leave SPARED of PARTS compute units to it, which have so many
 * work-groups of it each. Measured on H200s. */
enum { SPARED = 2, PARTS = 11, UNIT_GROUPS = 16 };
enum { LINE_BYTES = 64, PROBE_ROUNDS = 2, LONGEST_S = 86400 };
enum { TOLD_BYTES = 65536 }; /* the longest message of `gather` in shared memory */
/* Of the rows to other ranks those that must not be sent, for a kernel that copies them, and the
 * least of their bytes, where that takes more kernels or not. */
static const double LEAST_SAVED = 0.25, WORTH_BYTES = 4 << 20, WORTH_FUSED_BYTES = 1 << 20;

typedef struct moert_control {
    const moert_exchange_memory *memory; /* of the windows */
    moert_storage probe;                 /* row r is written by rank r */
    moert_shared *words;                 /* two status words per rank, then two messages */
    uint64_t meetings;                   /* of the hosts */
    moert_flags *flags;                  /* of the devices; NULL: the hosts wait for them */
    bool besides;       /* the next combine may run beside other work; the same on all ranks */
    bool behind;        /* the last one may have ended before that work has, on any rank */
    moert_mark *branch; /* from which on the next combine runs beside other work, or NULL */
    moert_mark *landed; /* the end of the last one that did, or NULL */
    unsigned once;      /* MOERT_ONCE_*: AUTO by what a dispatch saves */
    unsigned push;      /* MOERT_PUSH_AUTO, if products do, OFF or ON */
    bool fuse;          /* moves of few rows are one kernel; this rank's own choice */
    bool all_fuse;      /* all ranks' */
    unsigned compiled;  /* kernels of such moves, a bit each */
} moert_control;

static volatile uint32_t *status_word(const moert_exchange *exchange, size_t rank, size_t meeting) {
    const moert_control *control = exchange->state;
    char *segment = moert_shared_segment(control->words, rank);
    return (volatile uint32_t *)(void *)(segment + meeting % 2 * LINE_BYTES);
}

/*
 * All hosts wait for each other, and learn whether one of them has failed: then all return that
 * failure. The words alternate between two places, since a rank may enter the next meeting while
 * another still reads this one's; it cannot enter the one after.
 * A sync is a fence for all memory that the ranks share, so this one serves every window.
 */
static moert_status meet(moert_exchange *exchange, moert_status status) {
    moert_control *control = exchange->state;
    size_t meeting = control->meetings++;
    bool failed = false;
    *status_word(exchange, moert_comm_rank(exchange->comm), meeting) = status;
    MOERT_TRY(moert_shared_sync(control->words));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        failed = failed || *status_word(exchange, r, meeting) != MOERT_OK;
    return failed ? moert_comm_agree(exchange->comm, status) : MOERT_OK;
}

static void *message(const moert_exchange *exchange, size_t rank, size_t meeting) {
    const moert_control *control = exchange->state;
    char *segment = moert_shared_segment(control->words, rank);
    return segment + 2 * LINE_BYTES + meeting % 2 * TOLD_BYTES;
}

/* A meeting, too, whose messages alternate likewise. */
static moert_status gather_window(moert_exchange *exchange, const void *mine, size_t bytes,
                                  void *all) {
    moert_control *control = exchange->state;
    control->behind = false; /* every host has waited for its device, or all fail */
    if (bytes > TOLD_BYTES)
        return moert_comm_allgather(exchange->comm, mine, bytes, all);
    const size_t meeting = control->meetings++;
    memcpy(message(exchange, moert_comm_rank(exchange->comm), meeting), mine, bytes);
    MOERT_TRY(moert_shared_sync(control->words));
    for (size_t r = 0; r < moert_comm_size(exchange->comm); r++)
        memcpy((char *)all + r * bytes, message(exchange, r, meeting), bytes);
    return MOERT_OK;
}

/* What all devices have done so far is seen by what they do from here on, if all ranks bring
 * MOERT_OK; else all return the same failure. */
static moert_status pass(moert_exchange *exchange, moert_status status) {
    const moert_control *control = exchange->state;
    moert_status finished =
        control->flags == NULL ? moert_device_finish(exchange->device) : MOERT_OK;
    MOERT_TRY(meet(exchange, status != MOERT_OK ? status : finished));
    return control->flags != NULL ? moert_flags_meet(control->flags) : MOERT_OK;
}

static moert_status allocate_window(const moert_window *window, size_t rows,
                                    moert_storage *storage) {
    const moert_exchange *exchange = window->exchange;
    const moert_control *control = exchange->state;
    return control->memory->create(exchange->device, exchange->comm, rows * moert_row_bytes(window),
                                   storage);
}

static void drop_mark(moert_mark **mark) {
    moert_mark_free(*mark);
    *mark = NULL;
}

static moert_status join_window(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    moert_status status = control->landed != NULL ? moert_mark_follow(control->landed) : MOERT_OK;
    drop_mark(&control->landed);
    return status;
}

static moert_status fetch_window(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    MOERT_TRY(join_window(exchange)); /* what ran aside is earlier work, too */
    return control->flags != NULL ? moert_flags_fetch(control->flags) : MOERT_OK;
}

static moert_status check_window(moert_exchange *exchange) {
    const moert_control *control = exchange->state;
    return control->flags != NULL ? moert_flags_check(control->flags) : MOERT_OK;
}

/* ---- the start-up test ---- */

static moert_status probe_write(moert_exchange *exchange, unsigned ranks, unsigned round) {
    const moert_control *control = exchange->state;
    unsigned rank = (unsigned)moert_comm_rank(exchange->comm);
    return MOERT_RUN(exchange->device, "exchange -DREMOTE=1", "probe_write",
                     ((moert_grid){1, 1, 1}), MOERT_ARG(control->probe.addresses), MOERT_ARG(ranks),
                     MOERT_ARG(rank), MOERT_ARG(round));
}

static moert_status probe_read(moert_exchange *exchange, moert_buffer *wrong, unsigned ranks,
                               unsigned round) {
    const moert_control *control = exchange->state;
    uint32_t count;
    MOERT_TRY(MOERT_RUN(exchange->device, "exchange -DREMOTE=1", "probe_read",
                        ((moert_grid){1, 1, 1}), MOERT_ARG(control->probe.addresses),
                        MOERT_ARG(wrong), MOERT_ARG(ranks), MOERT_ARG(round)));
    MOERT_TRY(moert_buffer_read(wrong, 0, &count, sizeof count));
    if (count > 0)
        return MOERT_FAIL(ERROR_UNSUPPORTED,
                          "kernels see %u of %u rows in the shared memory of other ranks wrongly",
                          (unsigned)count, ranks * ranks);
    return MOERT_OK;
}

/*
 * Every rank writes into every segment and reads all of them, twice, so that a device that keeps a
 * copy shows. All ranks fail alike.
 */
static moert_status probe(moert_exchange *exchange) {
    unsigned ranks = (unsigned)moert_comm_size(exchange->comm);
    moert_buffer *wrong = NULL;
    moert_status status = moert_buffer_create(exchange->device, sizeof(uint32_t), &wrong);
    for (unsigned round = 0; round < PROBE_ROUNDS; round++) {
        if (status == MOERT_OK)
            status = probe_write(exchange, ranks, round);
        MOERT_TRY_OR(release, pass(exchange, status));
        status = probe_read(exchange, wrong, ranks, round);
        MOERT_TRY_OR(release, pass(exchange, status)); /* before anyone writes the next round */
    }
    MOERT_TRY_OR(release, fetch_window(exchange));
    MOERT_TRY_OR(release, moert_device_finish(exchange->device));
    status = check_window(exchange);
release:
    moert_buffer_destroy(wrong);
    return status;
}

static void close_window(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    moert_mark_free(control->branch);
    moert_mark_free(control->landed);
    moert_flags_destroy(control->flags);
    moert_storage_release(&control->probe);
    moert_shared_destroy(control->words);
    free(control);
    exchange->state = NULL;
}

/* What excludes the engine before anything is made. Collective. */
static void look(const moert_exchange *exchange, const moert_exchange_memory *memory,
                 char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    const bool cpu = moert_device_describe(exchange->device)->is_cpu;
    bool all_cpus = cpu;
    if (moert_exchange_everyone(exchange->comm, cpu, &all_cpus) != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    else if (moert_comm_node_count(exchange->comm) != 1)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "the ranks are on %zu hosts",
                 moert_comm_node_count(exchange->comm));
    else if (cpu != all_cpus)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES,
                 "rank %zu uses a CPU device, which others do not",
                 moert_comm_rank(exchange->comm));
    else
        memory->look(exchange->device, exchange->comm, reason);
}

/* Shares this rank's failure, if it is one, as the reason of all. */
static void share_failure(moert_exchange *exchange, moert_status status,
                          char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    if (status != MOERT_OK)
        snprintf(reason, MOERT_EXCHANGE_REASON_BYTES, "%s", moert_last_error());
    moert_exchange_share_reason(exchange->comm, reason);
}

/* ---- who waits ---- */

/* Whether AUTO lets the devices wait, which must run the kernels of all ranks at the same time:
 * GPUs that have one rank each. */
static moert_status have_own_gpus(moert_exchange *exchange, bool *all) {
    enum { BYTES = sizeof((moert_device_info *)0)->pci };
    const moert_device_info *info = moert_device_describe(exchange->device);
    const size_t ranks = moert_comm_size(exchange->comm), rank = moert_comm_rank(exchange->comm);
    char(*places)[BYTES];
    moert_status status;
    MOERT_TRY(moert_alloc(&places, ranks, BYTES));
    MOERT_TRY_OR(release, moert_comm_allgather(exchange->comm, info->pci, BYTES, places));
    bool alone = info->is_gpu && info->pci[0] != '\0';
    for (size_t r = 0; r < ranks; r++)
        alone = alone && (r == rank || strcmp(places[r], info->pci) != 0);
    MOERT_TRY_OR(release, moert_exchange_everyone(exchange->comm, alone, all));
release:
    free(places);
    return status;
}

/* Makes flags if the devices are to wait, and tests them. They are to tell who is late before the
 * watchdog ends the job, and wait for three quarters of its time. */
static moert_status open_flags(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    const moert_config *config = moert_config_get();
    const uint64_t timeout_ms = 1000 * (config->timeout_s > 0 ? config->timeout_s : LONGEST_S);
    bool wanted = config->sync == MOERT_SYNC_DEVICE, own;
    MOERT_TRY(have_own_gpus(exchange, &own));
    MOERT_TRY(moert_exchange_everyone(exchange->comm,
                                      config->sync == MOERT_SYNC_AUTO ? own : wanted, &wanted));
    if (!wanted)
        return MOERT_OK;
    moert_status status = moert_flags_create(exchange->device, exchange->comm, control->memory,
                                             timeout_ms * 750000, &control->flags);
    if (status == MOERT_OK)
        status = probe(exchange);
    status = moert_comm_agree(exchange->comm, status);
    if (status == MOERT_OK) {
        MOERT_INFO("the ranks' devices wait for each other, without their hosts");
        return MOERT_OK;
    }
    moert_flags_destroy(control->flags);
    control->flags = NULL;
    if (config->sync == MOERT_SYNC_DEVICE)
        return status;
    MOERT_INFO("the hosts wait for their devices: %s", moert_last_error());
    return MOERT_OK;
}

/* auto|off|on of all ranks: AUTO where the devices of those that say so are such that it suits. */
static moert_status agree_on(const moert_exchange *exchange, unsigned wanted, bool suits,
                             unsigned *choice) {
    enum { AUTO, OFF, ON };
    const bool on = wanted == ON;
    bool always, sometimes;
    MOERT_TRY(moert_exchange_everyone(exchange->comm, on, &always));
    MOERT_TRY(moert_exchange_everyone(exchange->comm, on || (wanted == AUTO && suits), &sometimes));
    *choice = always ? ON : sometimes ? AUTO : OFF;
    return MOERT_OK;
}

/* Links between GPUs are taken to be slower than their memory, and only products on Hopper's tensor
 * cores push. */
static moert_status choose_ways(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    const moert_config *config = moert_config_get();
    const unsigned nvidia = moert_device_describe(exchange->device)->nvidia;
    const bool push =
        nvidia == 90 && config->tensor == MOERT_TENSOR_AUTO &&
        (config->backend == MOERT_BACKEND_AUTO || config->backend == MOERT_BACKEND_NVIDIA);
    const bool sums = config->push == MOERT_PUSH_SUM;
    control->fuse = control->flags != NULL && (config->fuse == MOERT_FUSE_ON ||
                                               (config->fuse == MOERT_FUSE_AUTO && nvidia > 0));
    MOERT_TRY(agree_on(exchange, config->once, nvidia > 0, &control->once));
    MOERT_TRY(agree_on(exchange, sums ? MOERT_PUSH_ON : config->push, push, &control->push));
    MOERT_TRY(moert_exchange_everyone(exchange->comm, control->fuse, &control->all_fuse));
    return moert_exchange_everyone(exchange->comm, sums, &exchange->sums);
}

/* Each step is agreed on before the next collective one. */
static void open_window(moert_exchange *exchange, char reason[MOERT_EXCHANGE_REASON_BYTES]) {
    const moert_exchange_memory *memory = moert_memory_of(exchange->device);
    const size_t ranks = moert_comm_size(exchange->comm);
    moert_control *control = NULL;
    look(exchange, memory, reason);
    share_failure(exchange, reason[0] == '\0' ? MOERT_NEW(&control) : MOERT_OK, reason);
    if (reason[0] != '\0') {
        free(control);
        return;
    }
    control->memory = memory;
    exchange->state = control;
    share_failure(
        exchange,
        moert_shared_create(exchange->comm, 2 * (LINE_BYTES + TOLD_BYTES), &control->words),
        reason);
    if (reason[0] == '\0')
        share_failure(
            exchange,
            memory->create(exchange->device, exchange->comm, ranks * LINE_BYTES, &control->probe),
            reason);
    if (reason[0] == '\0')
        share_failure(exchange, probe(exchange), reason);
    if (reason[0] == '\0')
        share_failure(exchange, open_flags(exchange), reason);
    if (reason[0] == '\0')
        share_failure(exchange, choose_ways(exchange), reason);
    if (reason[0] != '\0')
        close_window(exchange);
    else
        exchange->reserves_worst_case = memory->reserves_worst_case;
}

/* ---- moves ---- */

bool moert_window_saves(const moert_plan *plan, size_t row_bytes, bool fused) {
    const double least_bytes = fused ? WORTH_FUSED_BYTES : WORTH_BYTES;
    const double ranks = (double)plan->ranks, slots = (double)plan->topk;
    double none = 1.0, rows = 0.0;
    for (size_t k = 0; k < plan->topk; k++)
        none *= 1.0 - 1.0 / ranks;
    for (size_t e = 0; e < plan->experts; e++)
        rows += (double)plan->expert_counts[e];
    const double saved = 1.0 - ranks * (1.0 - none) / slots;
    const double off_rank = rows / ranks * (1.0 - 1.0 / ranks);
    return saved >= LEAST_SAVED && saved * off_rank * (double)row_bytes >= least_bytes;
}

/* The same on all ranks. */
static bool goes_once(const moert_exchange *exchange, const moert_move *move) {
    const moert_control *control = exchange->state;
    return control->once == MOERT_ONCE_ON ||
           (control->once == MOERT_ONCE_AUTO &&
            moert_window_saves(move->plan->plan, move->window->stride * sizeof(float),
                               control->all_fuse));
}

/* A combine beside other work meets before that work, which may still read the rows of the last
 * dispatch when another rank is about to send the next. Then the devices meet once more; a plan in
 * between, for which every host has waited for its device, spares that. */
static moert_status catch_up(moert_exchange *exchange, moert_status status) {
    moert_control *control = exchange->state;
    const moert_status met = control->behind ? moert_flags_meet(control->flags) : MOERT_OK;
    control->behind = false;
    return status != MOERT_OK ? status : met;
}

/* Whether all of it is one kernel, with the meeting inside; on other ranks it may be several. */
static bool is_fused(const moert_exchange *exchange, const moert_move *move, bool combines) {
    const moert_control *control = exchange->state;
    return control->fuse && !(combines && control->besides) &&
           moert_kernel_is_small(move, combines);
}

static bool sends_window(const moert_exchange *exchange, const moert_move *move) {
    return is_fused(exchange, move, true);
}

/* A kernel is compiled by a meeting of nobody: one that waits must not hold the cache's lock. */
static moert_status move_fused(moert_exchange *exchange, const moert_move *move, bool combines,
                               moert_status status) {
    moert_control *control = exchange->state;
    const moert_meeting nobody = moert_flags_nobody(control->flags);
    const size_t numbers = combines ? move->window->columns : move->window->width;
    const unsigned kernel = 1U << (2 * (combines + move->pushed) + (numbers % 4 == 0));
    if (status == MOERT_OK && (control->compiled & kernel) == 0)
        status = moert_kernel_move_meeting(exchange, move, combines, &nobody);
    control->compiled |= status == MOERT_OK ? kernel : 0;
    MOERT_TRY(meet(exchange, status));
    const moert_meeting next = moert_flags_next(control->flags);
    MOERT_TRY(moert_kernel_move_meeting(exchange, move, combines, &next));
    return moert_device_flush(exchange->device); /* the others wait for it */
}

static moert_status dispatch_window(moert_exchange *exchange, const moert_move *given,
                                    moert_status status) {
    moert_move move = *given;
    move.once = goes_once(exchange, given);
    status = catch_up(exchange, status);
    if (is_fused(exchange, &move, false))
        return move_fused(exchange, &move, false, status);
    if (status == MOERT_OK)
        status = move.once ? moert_kernel_dispatch_once(exchange, &move)
                           : moert_kernel_dispatch(exchange, &move, true);
    MOERT_TRY(pass(exchange, status));
    return move.once ? moert_kernel_fan_out(exchange, &move) : MOERT_OK;
}

static bool pushes_window(const moert_exchange *exchange, bool products) {
    const moert_control *control = exchange->state;
    return control->push == MOERT_PUSH_ON || (control->push == MOERT_PUSH_AUTO && products);
}

static moert_status combine_rows(moert_exchange *exchange, const moert_move *move) {
    if (move->pushed)
        return moert_kernel_sum(exchange, move);
    return moert_kernel_combine_rows(exchange, move, true, move->window->storage.addresses,
                                     move->plan->destination);
}

static moert_status combine_slots(moert_exchange *exchange, const moert_move *move) {
    return move->slots != NULL ? moert_kernel_combine_slots(exchange, move, true) : MOERT_OK;
}

static unsigned spared_units(const moert_exchange *exchange) {
    return moert_device_describe(exchange->device)->compute_units * SPARED / PARTS;
}

/* Only where no host has to wait for a device. What can fail is done here, where a rank can still
 * tell the others in time. */
static moert_status branch_window(moert_exchange *exchange) {
    moert_control *control = exchange->state;
    control->besides = control->flags != NULL;
    if (!control->besides || !moert_device_has_aside(exchange->device))
        return MOERT_OK;
    MOERT_TRY(join_window(exchange));
    MOERT_TRY(moert_device_turn(exchange->device, true));
    MOERT_TRY(moert_device_turn(exchange->device, false));
    MOERT_TRY(moert_mark_set(exchange->device, &control->branch));
    moert_device_spare(exchange->device, spared_units(exchange));
    return MOERT_OK;
}

/* The second queue from the branch on, to marks behind the slots and behind the rows. */
static moert_status combine_aside(moert_exchange *exchange, const moert_move *move,
                                  moert_mark **slots) {
    moert_control *control = exchange->state;
    moert_move rows = *move;
    rows.most_groups = moert_max(spared_units(exchange), 1) * (size_t)UNIT_GROUPS;
    const moert_status follows = moert_mark_follow(control->branch);
    MOERT_TRY(moert_flags_meet(control->flags)); /* in any case: the others count it, too */
    MOERT_TRY(follows);
    MOERT_TRY(combine_slots(exchange, move));
    MOERT_TRY(moert_mark_set(exchange->device, slots));
    MOERT_TRY(combine_rows(exchange, &rows));
    if (moert_device_join_in(exchange->device) != MOERT_OK) /* on the units that are free then */
        MOERT_INFO("units stay idle behind a combine: %s", moert_last_error());
    return moert_mark_set(exchange->device, &control->landed);
}

static moert_status combine_beside(moert_exchange *exchange, const moert_move *move) {
    moert_mark *slots = NULL;
    MOERT_TRY(moert_device_turn(exchange->device, true));
    moert_status status = combine_aside(exchange, move, &slots);
    const moert_status back = moert_device_turn(exchange->device, false);
    status = status != MOERT_OK ? status : back;
    if (status == MOERT_OK)
        status = moert_mark_follow(slots);
    if (status != MOERT_OK)
        moert_device_finish(exchange->device); /* nothing else orders the two queues now */
    moert_mark_free(slots);
    return status;
}

static moert_status combine_window(moert_exchange *exchange, const moert_move *move,
                                   moert_status status) {
    moert_control *control = exchange->state;
    const bool besides = control->besides, branched = control->branch != NULL;
    control->behind = false;
    if (is_fused(exchange, move, true))
        return move_fused(exchange, move, true, status);
    control->besides = false;
    status = branched ? meet(exchange, status) : pass(exchange, status);
    control->behind = status == MOERT_OK && besides;
    if (status == MOERT_OK && branched)
        status = combine_beside(exchange, move);
    if (branched)
        moert_device_spare(exchange->device, 0);
    drop_mark(&control->branch);
    if (branched || status != MOERT_OK)
        return status;
    MOERT_TRY(combine_slots(exchange, move));
    return combine_rows(exchange, move);
}

const moert_engine moert_engine_window = {
    .name = "window",
    .open = open_window,
    .close = close_window,
    .allocate = allocate_window,
    .dispatch = dispatch_window,
    .combine = combine_window,
    .fetch = fetch_window,
    .beside = branch_window,
    .join = join_window,
    .check = check_window,
    .pushes = pushes_window,
    .sends = sends_window,
    .gather = gather_window,
};

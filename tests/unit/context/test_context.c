// run: check=1,2 all=3,4,2san
/* Contexts: several in sequence, contexts on the caller's OpenCL objects, with and without binding
 * to cores, of halves of the ranks, and with bad settings. */
#include <sched.h>

#include "base/memory.h"
#include "context/context.h"
#include "support/mpi.h"
#include "support/opencl.h"

static void destroy(void *context) {
    moert_context_destroy(context);
}

/* Creates a context that the test owns. */
static moert_context *open_context(const moert_context_options *options) {
    moert_context *context;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, options, &context));
    return owned(context, destroy);
}

/* Sets a variable on the last rank only. Returns its value before, on all ranks. */
static const char *change_last(const char *name, const char *value) {
    const char *before = getenv(name) != NULL ? titled("%s", getenv(name)) : NULL;
    if (test_rank + 1 == test_ranks)
        set_variable(name, value);
    return before;
}

static cpu_set_t affinity(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
}

static cpu_set_t at_start; /* the processors that this process might use at first */

static int keep_affinity(void **state) {
    (void)state;
    at_start = affinity();
    return 0;
}

/* Creates, uses and destroys a context. */
static moert_status use_context(const moert_context_options *options) {
    moert_context *context;
    moert_buffer *buffer = NULL;
    uint64_t sent = 77 + test_rank, got = 0;
    moert_status status;
    MOERT_TRY(moert_context_create(MPI_COMM_WORLD, options, &context));
    MOERT_TRY_OR(end, moert_buffer_create(moert_context_device(context), sizeof got, &buffer));
    MOERT_TRY_OR(end, moert_buffer_write(buffer, 0, &sent, sizeof sent));
    MOERT_TRY_OR(end, moert_buffer_read(buffer, 0, &got, sizeof got));
    if (got != sent || moert_context_rank(context) != test_rank ||
        moert_context_size(context) != test_ranks)
        status = MOERT_FAIL(ERROR_INTERNAL, "%llu came back as %llu on rank %zu of %zu",
                            (unsigned long long)sent, (unsigned long long)got,
                            moert_context_rank(context), moert_context_size(context));
end:
    moert_buffer_destroy(buffer);
    status = moert_comm_agree(moert_context_comm(context), status);
    moert_context_destroy(context);
    return status;
}

TEST(test_contexts_follow_each_other) {
    const moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    for (size_t i = 0; i < 3; i++)
        ASSERT_OK_ON_ALL(use_context(i % 2 == 0 ? NULL : &options));
    moert_context_destroy(NULL);
}

TEST(test_two_contexts_live_side_by_side) {
    moert_context *second = open_context(NULL), *first;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, NULL, &first));
    ASSERT_ON_ALL(moert_context_device(first) != moert_context_device(second));
    moert_context_destroy(first);
    ASSERT_OK_ON_ALL(moert_device_finish(moert_context_device(second)));
}

/* Runs moert_context_settle_tiles() as if all ranks had CPUs, and only the first `count` had AMX.
 * The last rank has `gpu_form`. MOERT_BF16 is `last` on the last rank and `others` elsewhere.
 * *uses: whether the device sums bf16 in AMX tiles. */
static moert_status settle(size_t count, const char *others, const char *last, bool gpu_form,
                           bool *uses) {
    const bool am_last = test_rank + 1 == test_ranks;
    moert_context *context = open_context(NULL);
    moert_device *device = moert_context_device(context);
    moert_device_info *info = (moert_device_info *)moert_device_describe(device);
    info->is_cpu = true;
    info->gpu_form = gpu_form && am_last;
    info->has_tiles = test_rank < count && !info->gpu_form;
    set_variable("MOERT_BF16", am_last ? last : others);
    const moert_status status = moert_context_settle_tiles(moert_context_comm(context), device);
    *uses = moert_device_sums_in_tiles(info);
    set_variable("MOERT_BF16", NULL);
    return status;
}

TEST(test_ranks_with_amx_and_without_sum_alike) {
    const struct {
        size_t without; /* the number of ranks without AMX, which are the last ones */
        const char *others, *last;
        bool gpu_form, uses;
    } rows[] = {
        {0, NULL, NULL, false, true},
        {1, NULL, NULL, false, false},
        {0, NULL, NULL, true, false},
        {0, NULL, "widened", false, false},
        {1, "tiles", "tiles", false, true},
        {0, "tiles", NULL, false, true},
        {0, "widened", "widened", false, false},
    };
    bool uses;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        ASSERT_OK_ON_ALL(settle(test_ranks - rows[i].without, rows[i].others, rows[i].last,
                                rows[i].gpu_form, &uses));
        ASSERT_ON_ALL(uses == rows[i].uses);
    }
}

TEST(test_sums_in_tiles_for_some_ranks_are_refused) {
    bool uses;
    ASSERT_FAILS_ON_ALL(settle(test_ranks, "tiles", "tiles", true, &uses), MOERT_ERROR_USAGE,
                        "MOERT_BF16=tiles needs kernels in the form for CPUs");
    if (test_ranks == 1)
        return;
    ASSERT_FAILS_ON_ALL(settle(test_ranks - 1, "tiles", NULL, false, &uses), MOERT_ERROR_USAGE,
                        "rank 0 sums bf16 in tiles");
}

TEST(test_options_of_another_size_are_refused) {
    moert_context *context = NULL;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.size -= test_rank == 0; /* only rank 0 passes a wrong size */
    ASSERT_FAILS_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &context), MOERT_ERROR_USAGE,
                        "MOERT_CONTEXT_OPTIONS_INIT");
    ASSERT_ON_ALL(context == NULL);
}

TEST(test_a_context_works_on_the_queue_of_the_caller) {
    const cl_objects caller = make_objects(0);
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.cl_context = caller.context;
    options.cl_device = caller.id;
    options.cl_queue = caller.queue;
    ASSERT_OK_ON_ALL(use_context(&options));
    ASSERT_OK_ON_ALL(use_context(&options));
    options.cl_queue = NULL;
    ASSERT_FAILS_ON_ALL(use_context(&options), MOERT_ERROR_USAGE,
                        "needs context, device and queue");
}

TEST(test_one_rank_with_a_bad_setting_fails_all_and_is_named) {
    static const struct {
        const char *name, *value, *text;
    } rows[] = {
        {"MOERT_DEVICE", "nosuch", "MOERT_DEVICE=nosuch matches no OpenCL device; there are: "},
        {"MOERT_TIMEOUT_S", "soon", "MOERT_TIMEOUT_S=soon is not legal; expected 0-86400"},
        {"MOERT_BIND", "maybe", "MOERT_BIND=maybe is not legal; expected 0 or 1"},
        {"MOERT_TOPOLOGY", "pack:x", "MOERT_TOPOLOGY"},
    };
    const size_t bad = test_ranks - 1;
    const char *rank =
        test_ranks > 1 ? titled("rank %zu (%s): ", bad, moert_comm_host(test_comm, bad)) : "";
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_context *context = NULL;
        const char *before = change_last(rows[i].name, rows[i].value);
        const moert_status status = moert_context_create(MPI_COMM_WORLD, NULL, &context);
        set_variable(rows[i].name, before);
        ASSERT_FAILS_ON_ALL(status, MOERT_ERROR_USAGE,
                            i < 3 ? titled("%s%s", rank, rows[i].text) : rank);
        ASSERT_ON_ALL(context == NULL && strstr(moert_last_error(), rows[i].text) != NULL);
        ASSERT_OK_ON_ALL(use_context(NULL));
    }
}

/* Opens a context while only the last rank has NAME=value. */
static moert_status open_with_odd_last_rank(const char *name, const char *value,
                                            bool same_variables) {
    moert_context *context = NULL;
    const char *before = change_last(name, value);
    const moert_status status =
        moert_context_open(moert_comm_world(), NULL, same_variables, &context);
    set_variable(name, before);
    moert_context_destroy(context);
    return status;
}

TEST(test_ranks_that_differ_in_a_variable_are_refused) {
    static const struct {
        const char *set, *other; /* of the last rank, of the others */
    } rows[] = {
        {"MOERT_BACKEND=reference", "MOERT_BACKEND=auto"},
        {"MOERT_EXCHANGE=staged", "MOERT_EXCHANGE=auto"},
        {"MOERT_PUSH=sum", "MOERT_PUSH=auto"},
        {"MOERT_NODE_SUM=presum", "MOERT_NODE_SUM=exact"},
        {"MOERT_CHUNKS=3", "MOERT_CHUNKS=0"},
        {"MOERT_TIMEOUT_S=77", "MOERT_TIMEOUT_S="},
        {"MOERT_BIND=0", "MOERT_BIND=1"},
        {"MOERT_KERNEL_DIR=kernels", "MOERT_KERNEL_DIR="},
        {"MOERT_NODE_RANKS=1", "MOERT_NODE_RANKS=0"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows) && test_ranks > 1; i++) {
        const char *value = strchr(rows[i].set, '=') + 1;
        const char *name = titled("%.*s", (int)(value - rows[i].set) - 1, rows[i].set);
        const char *text =
            titled("rank %zu (%s): has %s, but rank 0 has %s", test_ranks - 1,
                   moert_comm_host(test_comm, test_ranks - 1), rows[i].set, rows[i].other);
        ASSERT_FAILS_ON_ALL(open_with_odd_last_rank(name, value, true), MOERT_ERROR_USAGE, text);
    }
}

TEST(test_ranks_may_differ_in_threads_tuning_and_logs) {
    ASSERT_OK_ON_ALL(open_with_odd_last_rank("MOERT_THREADS", "1", true));
    ASSERT_OK_ON_ALL(open_with_odd_last_rank("MOERT_TUNE", "off", true));
    ASSERT_OK_ON_ALL(open_with_odd_last_rank("MOERT_LOG", "error", true));
}

/* moert-preflight opens a context to report the differences. */
TEST(test_a_context_may_be_opened_with_other_variables_but_not_with_another_binding) {
    ASSERT_OK_ON_ALL(open_with_odd_last_rank("MOERT_CHUNKS", "3", false));
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(open_with_odd_last_rank("MOERT_BIND", "0", false), MOERT_ERROR_USAGE,
                            "has MOERT_BIND=0, but rank 0 has MOERT_BIND=1; all ranks must get");
}

TEST(test_bound_ranks_have_cores_of_their_own) {
    enum { MOST = 64 };
    cpu_set_t all[MOST], both;
    set_variable("MOERT_BIND", "1");
    const moert_placement *placement = moert_context_placement(open_context(NULL));
    const cpu_set_t mine = affinity();
    bool right = test_ranks <= MOST && placement->cpu_count > 0;
    right = right && CPU_COUNT(&mine) >= (int)placement->cpu_count;
    right = moert_comm_allgather(test_comm, &mine, sizeof mine, all) == MOERT_OK && right;
    for (size_t r = 0; r < test_ranks && r != test_rank; r++) {
        CPU_AND(&both, &mine, &all[r]);
        right = right && (placement->shared || CPU_COUNT(&both) == 0);
    }
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(right);
}

TEST(test_a_bound_rank_finds_the_same_cores_again) {
    moert_placement first;
    for (size_t i = 0; i < 3; i++) {
        const moert_placement found = *moert_context_placement(open_context(NULL));
        first = i == 0 ? found : first;
        ASSERT_ON_ALL(strcmp(found.cpus, first.cpus) == 0);
        release_owned();
    }
}

/* ---- options instead of variables ---- */

TEST(test_wrong_options_are_named) {
    const struct {
        const char *engine;
        int binding, timeout_s;
        const char *text;
    } rows[] = {{"fast", 0, -1, "engine of a context is 'fast'; one of auto|local"},
                {NULL, 3, -1, "binding of a context is 3"},
                {NULL, 0, -2, "timeout_s of a context is -2"},
                {NULL, 0, 86401, "timeout_s of a context is 86401"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_context *context = NULL;
        moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
        options.engine = rows[i].engine;
        options.binding = (moert_binding)rows[i].binding;
        options.timeout_s = rows[i].timeout_s;
        ASSERT_FAILS_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &context),
                            MOERT_ERROR_USAGE, rows[i].text);
    }
    moert_context *context = NULL;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.timeout_s = test_ranks > 1 && test_rank + 1 == test_ranks ? 77 : 78;
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &context),
                            MOERT_ERROR_USAGE, "has timeout_s=77, but rank 0 has timeout_s=78");
}

TEST(test_an_option_binds_and_destroy_restores_the_affinity) {
    moert_context *first, *second;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    set_variable("MOERT_BIND", "0"); /* keeps the cores, without an option */
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, NULL, &first));
    cpu_set_t now = affinity();
    bool right = CPU_EQUAL(&at_start, &now) && moert_context_placement(first)->cpu_count == 0;
    moert_context_destroy(first);
    options.binding = MOERT_BINDING_ON;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &first));
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &second));
    right = right && moert_context_placement(first)->cpu_count > 0;
    moert_context_destroy(first);
    now = affinity();
    right = right && CPU_COUNT(&now) <= CPU_COUNT(&at_start);
    moert_context_destroy(second);
    now = affinity();
    right = right && CPU_EQUAL(&at_start, &now);
    set_variable("MOERT_BIND", "1");
    options.binding = MOERT_BINDING_OFF;
    right = moert_context_placement(open_context(&options))->cpu_count == 0 && right;
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(right);
}

static void count_line(void *user, int level, const char *line) {
    size_t *lines = user;
    *lines +=
        level >= 0 && level <= 4 && strstr(line, "moert") != NULL && strchr(line, '\n') == NULL;
}

TEST(test_a_callback_gets_the_log_lines) {
    size_t lines = 0;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.log = count_line;
    options.log_user = &lines;
    set_variable("MOERT_BIND", "1");
    set_variable("MOERT_LOG", "debug");
    moert_context *context = open_context(&options);
    set_variable("MOERT_LOG", NULL);
    ASSERT_OK_ON_ALL(moert_context_pause_watch(context, true));
    ASSERT_OK_ON_ALL(moert_context_pause_watch(context, false));
    ASSERT_OK_ON_ALL(moert_context_set_timeout(context, 90));
    ASSERT_FAILS_ON_ALL(moert_context_set_timeout(context, 86401), MOERT_ERROR_USAGE, "86401");
    release_owned(); /* before `lines` ends, and the binding's variable */
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(lines > 0);
}

/* ---- the lower and the upper half of the ranks make a context each ---- */

/* What a rank got of its host. */
typedef struct share {
    moert_placement placement;
    int device; /* its number in its platform */
} share;

static moert_status find_share(MPI_Comm mpi, const MPI_Comm *placement, share *out) {
    moert_context *context;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.placement = placement;
    MOERT_TRY(moert_context_create(mpi, &options, &context));
    out->placement = *moert_context_placement(context);
    out->device = moert_device_describe(moert_context_device(context))->index;
    moert_context_destroy(context);
    return MOERT_OK;
}

/* `given`: the caller tells which processes divide the host. */
static void compare_halves_with_whole(const char *bind, bool given) {
    const MPI_Comm world = MPI_COMM_WORLD;
    MPI_Comm half;
    share whole, mine;
    set_variable("MOERT_BIND", bind);
    ASSERT_OK_ON_ALL(find_share(MPI_COMM_WORLD, NULL, &whole));
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < test_ranks / 2, 0, &half);
    ASSERT_OK_ON_ALL(find_share(half, given ? &world : NULL, &mine));
    MPI_Comm_free(&half);
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(mine.device == whole.device &&
                  strcmp(mine.placement.cpus, whole.placement.cpus) == 0);
}

/* They divide the cores and the devices of the host as all ranks of one context do. */
TEST(test_bound_and_unbound_halves_share_the_host) {
    for (int row = 0; row < 4; row++)
        compare_halves_with_whole(row < 2 ? "1" : "0", row % 2 != 0);
}

MPI_TESTS(keep_affinity, NULL)

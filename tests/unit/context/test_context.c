// run: check=1,2 all=3,4,2san
/* Contexts: several in sequence, on the caller's OpenCL objects, with and without binding to cores,
 * over half of the ranks, and with bad settings. */
#include <sched.h>

#include "context/context.h"
#include "device/device.h"
#include "support/mpi.h"
#include "support/opencl.h"

/* Creates a context that the test owns. */
static moert_context *open_context(const moert_context_options *options) {
    moert_context *context;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, options, &context));
    return owned(context, moert_context_destroy);
}

static cpu_set_t affinity(void) {
    cpu_set_t set;
    CPU_ZERO(&set);
    sched_getaffinity(0, sizeof set, &set);
    return set;
}

static cpu_set_t at_start; /* the processors that this process was allowed to use when it started */

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

/* Runs moert_context_settle_tiles() as if all ranks had CPUs, and only the first ranks had AMX. The
 * last rank has `gpu_form`. MOERT_BF16 is `last` on the last rank and `others` elsewhere. */
TEST(test_ranks_with_amx_and_without_sum_alike) {
    const struct {
        size_t without; /* the number of ranks without AMX, which are the last ones */
        const char *others, *last;
        bool gpu_form, uses; /* uses: the devices are expected to sum bf16 in AMX tiles */
        const char *text;    /* part of the expected error message */
    } rows[] = {
        {0, NULL, NULL, false, true, NULL},
        {1, NULL, NULL, false, false, NULL},
        {0, NULL, NULL, true, false, NULL},
        {0, NULL, "widened", false, false, NULL},
        {1, "tiles", "tiles", false, true, NULL},
        {0, "tiles", NULL, false, true, NULL},
        {0, "widened", "widened", false, false, NULL},
        {0, "tiles", "tiles", true, false, "MOERT_BF16=tiles needs kernels in CPU form"},
        {1, "tiles", NULL, false, false, "rank 0 sums bf16 in tiles"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const bool am_last = test_rank + 1 == test_ranks;
        moert_context *context = open_context(NULL);
        moert_device *device = moert_context_device(context);
        moert_device_info *info = (moert_device_info *)moert_device_describe(device);
        info->is_cpu = true;
        info->gpu_form = rows[i].gpu_form && am_last;
        info->has_tiles = test_rank < test_ranks - rows[i].without && !info->gpu_form;
        set_variable("MOERT_BF16", am_last ? rows[i].last : rows[i].others);
        const moert_status status = moert_context_settle_tiles(moert_context_comm(context), device);
        const bool uses = moert_device_sums_in_tiles(info);
        set_variable("MOERT_BF16", NULL);
        if (rows[i].text == NULL) {
            ASSERT_OK_ON_ALL(status);
            ASSERT_ON_ALL(uses == rows[i].uses);
        } else if (test_ranks > 1 || rows[i].gpu_form) {
            ASSERT_REFUSED(status, rows[i].text);
        }
    }
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
    ASSERT_REFUSED(use_context(&options), "needs context, device and queue");
}

TEST(test_a_variable_of_one_rank_may_fail_all_and_is_named) {
    static const struct {
        const char *set; /* the variable on the last rank */
        /* the variable on all other ranks, if a difference between the ranks is an error */
        const char *other;
        const char *text; /* part of the message, if the last rank's value alone is an error */
    } rows[] = {
        {"MOERT_DEVICE=nosuch", NULL, "MOERT_DEVICE=nosuch matches no OpenCL device; there are: "},
        {"MOERT_TIMEOUT_S=soon", NULL, "MOERT_TIMEOUT_S=soon is not legal; expected 0-86400"},
        {"MOERT_BIND=maybe", NULL, "MOERT_BIND=maybe is not legal; expected 0 or 1"},
        {"MOERT_TOPOLOGY=pack:x", NULL, "MOERT_TOPOLOGY='pack:x' is neither"},
        {"MOERT_BACKEND=reference", "MOERT_BACKEND=auto", NULL},
        {"MOERT_EXCHANGE=staged", "MOERT_EXCHANGE=auto", NULL},
        {"MOERT_PUSH=sum", "MOERT_PUSH=auto", NULL},
        {"MOERT_NODE_SUM=presum", "MOERT_NODE_SUM=exact", NULL},
        {"MOERT_CHUNKS=3", "MOERT_CHUNKS=0", NULL},
        {"MOERT_TIMEOUT_S=0", "MOERT_TIMEOUT_S=", NULL},
        {"MOERT_BIND=0", "MOERT_BIND=1", NULL},
        {"MOERT_KERNEL_DIR=kernels", "MOERT_KERNEL_DIR=", NULL},
        {"MOERT_NODE_RANKS=1", "MOERT_NODE_RANKS=0", NULL},
        {"MOERT_THREADS=1", NULL, NULL},
        {"MOERT_TUNE=off", NULL, NULL},
        {"MOERT_LOG=error", NULL, NULL},
        /* moert-preflight opens a context to report differences */
        {"MOERT_CHUNKS=3", NULL, NULL},
        {"MOERT_BIND=0", "MOERT_BIND=1; all ranks must get", NULL},
    };
    enum { OF_PREFLIGHT = MOERT_COUNT(rows) - 2 };
    const size_t last = test_ranks - 1;
    const char *rank =
        last > 0 ? titled("rank %zu (%s): ", last, moert_comm_host(test_comm, last)) : "";
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_context *context = NULL;
        const char *value = strchr(rows[i].set, '=') + 1, *text = rows[i].text;
        if (last > 0 && rows[i].other != NULL)
            text = titled("has %s, but rank 0 has %s", rows[i].set, rows[i].other);
        const char *name = titled("%.*s", (int)(value - rows[i].set) - 1, rows[i].set);
        const char *before = getenv(name) != NULL ? titled("%s", getenv(name)) : NULL;
        if (test_rank == last)
            set_variable(name, value);
        const moert_status status =
            moert_context_open(moert_comm_world(), NULL, i < OF_PREFLIGHT, &context);
        set_variable(name, before);
        ASSERT_ON_ALL((context != NULL) == (status == MOERT_OK));
        moert_context_destroy(context);
        if (text == NULL)
            ASSERT_OK_ON_ALL(status);
        else
            ASSERT_REFUSED(status, titled("%s%s", rank, text));
        ASSERT_OK_ON_ALL(use_context(NULL));
    }
}

/* Every new context binds the ranks in the same way. */
TEST(test_bound_ranks_have_the_same_cores_of_their_own) {
    enum { MOST = 64 };
    cpu_set_t all[MOST], both;
    moert_placement first;
    bool right = test_ranks <= MOST;
    set_variable("MOERT_BIND", "1");
    for (size_t i = 0; i < 3; i++) {
        const moert_placement *placement = moert_context_placement(open_context(NULL));
        const cpu_set_t mine = affinity();
        first = i == 0 ? *placement : first;
        right = right && placement->cpu_count > 0 && strcmp(placement->cpus, first.cpus) == 0 &&
                CPU_COUNT(&mine) >= (int)placement->cpu_count;
        right = moert_comm_allgather(test_comm, &mine, sizeof mine, all) == MOERT_OK && right;
        for (size_t r = 0; r < test_ranks && r != test_rank; r++) {
            CPU_AND(&both, &mine, &all[r]);
            right = right && (placement->shared || CPU_COUNT(&both) == 0);
        }
        release_owned();
    }
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(right);
}

/* ---- options instead of variables ---- */

/* The last rank's options are wrong, or only differ from those of rank 0. */
TEST(test_wrong_options_are_named) {
    const struct {
        const char *engine;
        int binding, timeout_s;
        size_t missing_bytes;
        const char *text;
    } rows[] = {{"fast", 0, -1, 0, "engine of a context is 'fast'; expected one of auto|local"},
                {NULL, 3, -1, 0, "binding of a context is 3"},
                {NULL, 0, -2, 0, "timeout_s of a context is -2"},
                {NULL, 0, 86401, 0, "timeout_s of a context is 86401"},
                {NULL, 0, -1, 1, "MOERT_CONTEXT_OPTIONS_INIT"},
                {NULL, 0, 77, 0, "has timeout_s=77, but rank 0 has timeout_s=-1"}};
    const size_t last = test_ranks - 1;
    for (size_t i = 0; i + (last == 0) < MOERT_COUNT(rows); i++) {
        moert_context *context = NULL;
        moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
        if (test_rank == last) {
            options.engine = rows[i].engine;
            options.binding = (moert_binding)rows[i].binding;
            options.timeout_s = rows[i].timeout_s;
            options.size -= rows[i].missing_bytes;
        }
        ASSERT_REFUSED(moert_context_create(MPI_COMM_WORLD, &options, &context), rows[i].text);
        ASSERT_ON_ALL(context == NULL);
    }
}

TEST(test_an_option_binds_and_destroy_restores_the_affinity) {
    moert_context *first, *second;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    set_variable("MOERT_BIND", "0"); /* without the option `binding`, the process keeps its cores */
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
    ASSERT_REFUSED(moert_context_set_timeout(context, 86401), "86401");
    release_owned(); /* the context must not outlive `lines` and MOERT_BIND=1 */
    set_variable("MOERT_BIND", NULL);
    ASSERT_ON_ALL(lines > 0);
}

/* ---- the lower and the upper half of the ranks make a context each ---- */

/* Whether a rank has the same cores and device in a context of its half as in a context of all
 * ranks. `given`: the caller's options say which processes divide the host. */
static bool has_same_share(MPI_Comm half, bool given) {
    const MPI_Comm world = MPI_COMM_WORLD;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    moert_placement placement[2];
    int device[2]; /* the device's number in its platform */
    for (int i = 0; i < 2; i++) {
        moert_context *context;
        options.placement = i == 1 && given ? &world : NULL;
        ASSERT_OK_ON_ALL(moert_context_create(i == 0 ? world : half, &options, &context));
        placement[i] = *moert_context_placement(context);
        device[i] = moert_device_describe(moert_context_device(context))->index;
        moert_context_destroy(context);
    }
    return device[0] == device[1] && strcmp(placement[0].cpus, placement[1].cpus) == 0;
}

/* The two halves divide the host's cores and devices as all ranks of one context would, also if the
 * launcher has bound no rank. */
TEST(test_bound_and_unbound_halves_share_the_host) {
    MPI_Comm half;
    cpu_set_t all;
    memset(&all, 0xFF, sizeof all);
    sched_setaffinity(0, sizeof all, &all);
    MPI_Comm_split(MPI_COMM_WORLD, test_rank < test_ranks / 2, 0, &half);
    for (int row = 0; row < 4; row++) {
        set_variable("MOERT_BIND", row < 2 ? "1" : "0");
        ASSERT_ON_ALL(has_same_share(half, row % 2 != 0));
    }
    set_variable("MOERT_BIND", NULL);
    sched_setaffinity(0, sizeof at_start, &at_start);
    MPI_Comm_free(&half);
}

MPI_TESTS(keep_affinity, NULL)

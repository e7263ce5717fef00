/* The setups of the exchange tests, and their main(). */
#include "support/exchange/suite.h"

#include "base/config.h"
#include "device/device.h"

enum { LOCAL = MOERT_EXCHANGE_LOCAL, WINDOW = MOERT_EXCHANGE_WINDOW };
static const setup setups[] = {
    {"local", .engine = LOCAL},
    {"window", WINDOW, .sync = "host"},
    {"window, devices wait", WINDOW, "device", .aside = true, .fuse = OFF},
    {"window, rows once", WINDOW, "device", .one_copy_per_rank = ON, .fuse = OFF},
    {"window, fused", WINDOW, "device", .one_copy_per_rank = OFF, .fuse = ON},
    {"window, fused, rows once", WINDOW, "device", .one_copy_per_rank = ON, .fuse = ON},
    {"window, pushed", WINDOW, "host", .push = "on"},
    {"window, pushed, devices wait, rows once", WINDOW, "device", NULL, 0, true, "on", ON, ON},
    {"window, summed", WINDOW, .push = "sum", .fuse = OFF},
    {"window, summed, fused", WINDOW, "device", .aside = true, .push = "sum", .fuse = ON},
    {"staged", .engine = MOERT_EXCHANGE_STAGED},
    {"nodes of 1", MOERT_EXCHANGE_NODE, .together = 1},
    {"nodes of 2", MOERT_EXCHANGE_NODE, .together = 2},
    {"nodes of 3", MOERT_EXCHANGE_NODE, .together = 3},
    {"impatient", WINDOW, "device", "2", .fuse = OFF},
    {"impatient, fused", WINDOW, "device", "2", .one_copy_per_rank = ON, .fuse = ON},
    {"impatient, summed", WINDOW, "device", "2", .push = "sum", .fuse = ON},
};

moert_comm *spread[JOB_RANKS];

static moert_status make_spread(void) {
    for (size_t together = 0; together < test_ranks; together++) {
        const char *const counts[JOB_RANKS] = {NULL, "1", "2", "3"};
        set_variable("MOERT_NODE_RANKS", counts[together]);
        MOERT_TRY(moert_comm_split(test_comm, 0, &spread[together]));
    }
    set_variable("MOERT_NODE_RANKS", NULL);
    return MOERT_OK;
}

bool has_windows(void) {
    const moert_device_info *info = moert_device_describe(test_device);
    return info->is_cpu || info->nvidia > 0;
}

const char *automatic_engine(moert_comm *comm) {
    moert_exchange *exchange;
    if (moert_exchange_create(test_device, comm, MOERT_EXCHANGE_AUTO, &exchange) != MOERT_OK)
        return "";
    /* a constant string, which lives as long as the program */
    const char *engine = moert_exchange_engine(exchange);
    moert_exchange_destroy(exchange);
    return engine;
}

moert_exchange *open_exchange(void **state) {
    const setup *tested = *state;
    moert_exchange *exchange;
    const char *const ways[][2] = {
        {"MOERT_SYNC", tested->sync},
        {"MOERT_TIMEOUT_S", tested->timeout_s},
        {"MOERT_PUSH", tested->push},
    };
    const size_t count = MOERT_COUNT(ways);
    for (size_t i = 0; i < count; i++)
        set_variable(ways[i][0], ways[i][1]);
    ASSERT_OK_ON_ALL(
        moert_exchange_create(test_device, spread[tested->together], tested->engine, &exchange));
    /* combines on the second queue read MOERT_SYNC later, so the variable stays set for them */
    for (size_t i = tested->aside ? 1 : 0; i < count; i++)
        set_variable(ways[i][0], NULL);
    assert_string_equal(moert_exchange_engine(exchange),
                        moert_config_choice("MOERT_EXCHANGE", tested->engine));
    /* no environment variable controls these properties of the window engine */
    if (tested->engine == MOERT_EXCHANGE_WINDOW) {
        moert_control *control = exchange->state;
        if (tested->one_copy_per_rank != AS_IT_IS)
            control->one_copy_per_rank =
                tested->one_copy_per_rank == ON ? MOERT_ONE_COPY_ALWAYS : MOERT_ONE_COPY_NEVER;
        if (tested->fuse != AS_IT_IS)
            control->fuse = tested->fuse == ON && control->flags != NULL;
    }
    return owned(exchange, moert_exchange_destroy);
}

trip *open_trip(void **state, const shape *c) {
    trip *t = open_windows(open_exchange(state), c->width, false);
    ASSERT_OK_ON_ALL(trip_run(c, t));
    return t;
}

void run_shape(moert_exchange *exchange, shape c, trip like) {
    const size_t before = owned_count();
    c.width += like.bf16 ? c.width % 2 : 0;
    trip *t = open_windows(exchange, c.width, like.bf16);
    t->chunks = like.chunks;
    t->presummed = like.presummed;
    ASSERT_OK_ON_ALL(trip_run(&c, t));
    release_since(before);
}

void run_shapes(moert_exchange *exchange, trip like) {
    for (size_t i = 0; i < SHAPES; i++)
        run_shape(exchange, shapes[i], like);
}

void expect_usable(trip *t) {
    const shape c = t->c;
    /* waits for a device that a test made late; then the device must work again */
    ASSERT_OK_ON_ALL(moert_device_finish(test_device));
    ASSERT_OK_ON_ALL(trip_run(&c, t));
    ASSERT_OK_ON_ALL(moert_exchange_settle(t->exchange));
}

/* True if this device and this number of ranks allow the setup. */
static bool applies(const setup *tested) {
    const bool cpu = moert_device_describe(test_device)->is_cpu;
    switch (tested->engine) {
    case MOERT_EXCHANGE_LOCAL:
        return test_ranks == 1;
    case MOERT_EXCHANGE_WINDOW:
        return has_windows();
    case MOERT_EXCHANGE_NODE:
        return cpu && tested->together < test_ranks;
    default:
        return true;
    }
}

int run_exchange_tests(int arguments, char **argument) {
    size_t count, chosen = 0;
    if (!mpi_tests_begin(arguments, argument))
        return 1;
    const struct CMUnitTest *tests = tests_of_program(&count);
    struct CMUnitTest *rows = test_alloc(count * MOERT_COUNT(setups) * sizeof *rows);
    if (open_test_device(NULL) != 0 || make_spread() != MOERT_OK)
        moert_comm_abort(test_comm, 1);
    for (size_t i = 0; i < count; i++) {
        const uintptr_t ways = (uintptr_t)tests[i].initial_state;
        if (ways == 0)
            rows[chosen++] = tests[i];
        for (size_t w = 0; w < MOERT_COUNT(setups); w++) {
            if ((ways >> w & 1) == 0 || !applies(&setups[w]))
                continue;
            rows[chosen] = tests[i];
            rows[chosen].name = titled("%s[%s]", tests[i].name, setups[w].name);
            rows[chosen++].initial_state = (void *)&setups[w];
        }
    }
    const int failed = run_table("exchange", rows, chosen, NULL, NULL);
    for (size_t together = 0; together < test_ranks; together++)
        moert_comm_destroy(spread[together]);
    close_test_device(NULL);
    return mpi_tests_end(failed);
}

// run: np=2,4 sanitize=2
/* The lower and the upper half of the ranks make a context each. They divide the cores and the
 * devices of the host as all ranks of one context do. */
#include "base/memory.h"
#include "context/context.h"
#include "support/mpi.h"

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

TEST(test_bound_and_unbound_halves_share_the_host) {
    for (int row = 0; row < 4; row++)
        compare_halves_with_whole(row < 2 ? "1" : "0", row % 2 != 0);
}

MPI_TESTS(NULL, NULL)

// run: check=1,2 all=3,4,2san
/* EP x EDP: which ranks share experts, on one host and on several hosts, for any order of the ranks
 * on the hosts. */
#include "comm/internal.h"
#include "layer/mesh.h"
#include "support/mpi.h"

enum { MOST = 8 };

/* Rank r runs on host node[r]. `order` lists the ranks by position. place[r] is {group, member,
 * replica} of rank r if groups have 2 ranks. */
TEST(test_positions_and_places_follow_the_hosts) {
    const struct {
        size_t ranks, node[MOST], order[MOST];
        moert_mesh_place place[4];
    } cases[] = {
        {1, {0}, {0}, {{0}}},
        {8, {0, 0, 0, 0, 1, 1, 1, 1}, {0, 1, 2, 3, 4, 5, 6, 7}, {{0}}},
        {8, {0, 1, 0, 1, 0, 1, 0, 1}, {0, 2, 4, 6, 1, 3, 5, 7}, {{0}}},
        {8, {0, 1, 2, 3, 0, 1, 2, 3}, {0, 4, 1, 5, 2, 6, 3, 7}, {{0}}},
        {6, {0, 1, 1, 0, 2, 0}, {0, 3, 5, 1, 2, 4}, {{0}}},
        {4, {0, 0, 0, 0}, {0, 1, 2, 3}, {{0, 0, 0}, {0, 1, 0}, {1, 0, 1}, {1, 1, 1}}},
        {4, {0, 0, 1, 1}, {0, 1, 2, 3}, {{0, 0, 0}, {0, 1, 0}, {1, 0, 1}, {1, 1, 1}}},
        {4, {0, 1, 0, 1}, {0, 2, 1, 3}, {{0, 0, 0}, {1, 0, 1}, {0, 1, 0}, {1, 1, 1}}},
        {4, {0, 1, 1, 0}, {0, 3, 1, 2}, {{0, 0, 0}, {1, 0, 1}, {1, 1, 0}, {0, 1, 1}}},
    };
    for (size_t i = 0; i < MOERT_COUNT(cases); i++) {
        moert_peer peers[MOST] = {0};
        const moert_comm world = {.size = cases[i].ranks, .peers = peers};
        moert_mesh_place places[4];
        size_t order[MOST] = {0};
        for (size_t r = 0; r < world.size; r++)
            peers[r].node = cases[i].node[r];
        for (size_t r = 0; r < world.size; r++)
            order[moert_mesh_position(&world, r)] = r;
        assert_memory_equal(order, cases[i].order, sizeof order);
        if (world.size == 4) {
            moert_mesh_places(&world, 2, places);
            assert_memory_equal(places, cases[i].place, sizeof places);
        }
    }
}

TEST(test_a_mesh_has_these_places) {
    moert_mesh_place places[MOST];
    if (test_ranks != 4)
        SKIP("only for 4 ranks");
    deal_ranks(2);
    const moert_mesh *mesh = open_mesh(2);
    moert_mesh_places(mesh->world, 2, places);
    deal_ranks(1);
    ASSERT_ON_ALL(moert_comm_rank(mesh->experts) == places[test_rank].member &&
                  moert_comm_rank(mesh->replicas) == places[test_rank].replica);
}

/* Each position in each group belongs to one rank; ranks with the same position are replicas. */
TEST(test_ranks_of_a_host_form_groups_of_neighbours) {
    moert_mesh *none;
    for (size_t ep = 1; ep <= test_ranks; ep++) {
        if (test_ranks % ep != 0)
            continue;
        const moert_mesh *mesh = open_mesh(ep);
        ASSERT_ON_ALL(moert_comm_size(mesh->experts) == ep &&
                      moert_comm_rank(mesh->experts) == test_rank % ep &&
                      moert_comm_size(mesh->replicas) == test_ranks / ep &&
                      moert_comm_rank(mesh->replicas) == test_rank / ep);
    }
    ASSERT_REFUSED(moert_mesh_create(test_context, test_ranks + 1, &none), "cannot form groups");
}

TEST(test_a_mesh_has_the_engine_of_its_context) {
    moert_context *context;
    moert_mesh *mesh = NULL;
    moert_context_options options = MOERT_CONTEXT_OPTIONS_INIT;
    options.engine = "staged";
    set_variable("MOERT_EXCHANGE", "window");
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &context));
    ASSERT_OK_ON_ALL(moert_mesh_create(context, 0, &mesh));
    set_variable("MOERT_EXCHANGE", NULL);
    ASSERT_ON_ALL(strcmp(moert_mesh_engine(mesh), "staged") == 0);
    moert_mesh_destroy(mesh);
    moert_context_destroy(context);
    options.engine = "local";
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &options, &context));
    const moert_status status = moert_mesh_create(context, 0, &mesh);
    ASSERT_ON_ALL(status == (test_ranks > 1 ? MOERT_ERROR_UNSUPPORTED : MOERT_OK));
    if (status == MOERT_OK)
        moert_mesh_destroy(mesh);
    moert_context_destroy(context);
}

MPI_TESTS(open_test_context, close_test_context)

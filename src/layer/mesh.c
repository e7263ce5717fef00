/* The EP x EDP arrangement of the ranks. */
#include "layer/mesh.h"

#include "base/memory.h"
#include "device/buffer.h"
#include "layer/handover.h"

moert_status moert_mesh_group(size_t ranks, size_t ep, size_t *group) {
    *group = ep == 0 ? ranks : ep;
    if (*group > ranks || ranks % *group != 0)
        return MOERT_FAIL(
            ERROR_USAGE,
            "%zu ranks cannot form groups of %zu for expert parallelism; EP must divide the "
            "number of ranks",
            ranks, *group);
    return MOERT_OK;
}

size_t moert_mesh_position(const moert_comm *world, size_t rank) {
    const size_t node = moert_comm_node(world, rank);
    size_t before = 0;
    for (size_t r = 0; r < moert_comm_size(world); r++) {
        const size_t other = moert_comm_node(world, r);
        before += other < node || (other == node && r < rank);
    }
    return before;
}

void moert_mesh_places(const moert_comm *world, size_t ep, moert_mesh_place *places) {
    for (size_t r = 0; r < moert_comm_size(world); r++) {
        moert_mesh_place *place = &places[r];
        *place = (moert_mesh_place){.group = moert_mesh_position(world, r) / ep};
        for (size_t other = 0; other < r; other++)
            place->member += places[other].group == place->group;
        for (size_t other = 0; other < r; other++)
            place->replica += places[other].member == place->member;
    }
}

static moert_status allocate(moert_mesh *mesh, size_t ranks, size_t replicas) {
    MOERT_TRY(MOERT_NEW_ARRAY(&mesh->spans, ranks));
    MOERT_TRY(MOERT_NEW_ARRAY(&mesh->replica_spans, replicas));
    for (size_t r = 0; r < replicas; r++)
        mesh->replica_spans[r] = (moert_span){r, 1, replicas};
    return MOERT_OK;
}

static void print_sizes(const void *sizes, FILE *file) {
    const size_t *size = sizes;
    fprintf(file, "ep=%zu%cexact replicas=%zu%c", size[0], 0, size[1], 0);
}

/* Devices sum and gather among themselves if the exchange may use windows. */
static moert_status find_holders(const moert_mesh *mesh, moert_comm *comm, moert_holders *holders) {
    const unsigned engine = moert_context_exchange(mesh->context);
    *holders = (moert_holders){.device = mesh->device, .comm = comm};
    return engine == MOERT_EXCHANGE_AUTO || engine == MOERT_EXCHANGE_WINDOW
               ? moert_peers_create(mesh->device, comm, &holders->peers)
               : MOERT_OK;
}

static moert_status create(moert_context *context, size_t ep, bool exact, moert_mesh **mesh) {
    MOERT_REQUIRE(context);
    moert_comm *world = moert_context_comm(context);
    size_t size = moert_comm_size(world), replicas = 1;
    moert_mesh *made = NULL;
    moert_status status = moert_mesh_group(size, ep, &ep);
    MOERT_TRY(moert_comm_agree(
        world, mesh != NULL ? status : MOERT_FAIL(ERROR_USAGE, "moert_mesh_create: mesh is NULL")));
    if (exact) {
        replicas = size / ep;
        ep = size;
    }
    MOERT_TRY(moert_comm_agree(world, MOERT_NEW(&made)));
    MOERT_TRY_OR(fail,
                 moert_comm_compare(world, print_sizes, (size_t[]){ep, replicas}, MOERT_ERROR_USAGE,
                                    "all ranks must create the mesh alike"));
    made->exact = replicas;
    made->context = context;
    made->device = moert_context_device(context);
    made->world = world;
    made->splitting.split = &made->scratch[MOERT_SCRATCH_ROUNDED_X];
    MOERT_TRY_OR(fail, moert_comm_agree(world, allocate(made, size, size / ep)));
    const size_t position = moert_mesh_position(world, moert_comm_rank(world));
    MOERT_TRY_OR(fail, moert_comm_split(world, position / ep, &made->experts));
    MOERT_TRY_OR(fail, moert_comm_split(world, moert_comm_rank(made->experts), &made->replicas));
    status = moert_exchange_create(made->device, made->experts, moert_context_exchange(context),
                                   &made->exchange);
    MOERT_TRY_OR(fail, moert_comm_agree(world, status)); /* all EP groups must have succeeded */
    MOERT_TRY_OR(fail, find_holders(made, made->world, &made->everyone));
    MOERT_TRY_OR(fail, find_holders(made, made->replicas, &made->owners));
    *mesh = made;
    return MOERT_OK;
fail:
    moert_mesh_destroy(made);
    return status;
}

moert_status moert_mesh_create(moert_context *context, size_t ep, moert_mesh **mesh) {
    return create(context, ep, false, mesh);
}

moert_status moert_mesh_create_exact(moert_context *context, size_t ep, moert_mesh **mesh) {
    return create(context, ep, true, mesh);
}

void moert_mesh_destroy(moert_mesh *mesh) {
    if (mesh == NULL)
        return;
    for (size_t i = 0; i < MOERT_SHARED_WINDOWS; i++)
        moert_window_destroy(mesh->windows[i]);
    for (size_t i = 0; i < MOERT_SCRATCHES; i++)
        moert_buffer_destroy(mesh->scratch[i]);
    moert_handover_free(mesh->handover);
    moert_peers_destroy(mesh->owners.peers);
    moert_peers_destroy(mesh->everyone.peers);
    moert_exchange_destroy(mesh->exchange);
    moert_comm_destroy(mesh->replicas);
    moert_comm_destroy(mesh->experts);
    MOERT_FREE(mesh->replica_spans, mesh->spans, mesh);
}

const char *moert_mesh_engine(const moert_mesh *mesh) {
    return mesh != NULL ? moert_exchange_engine(mesh->exchange) : NULL;
}

moert_status moert_mesh_settle(moert_mesh *mesh) {
    MOERT_REQUIRE(mesh);
    MOERT_TRY(moert_exchange_settle(mesh->exchange));
    const moert_status everyone = moert_peers_settle(mesh->everyone.peers),
                       owners = moert_peers_settle(mesh->owners.peers);
    return moert_comm_agree(mesh->world, everyone != MOERT_OK ? everyone : owners);
}

moert_status moert_mesh_gather_spans(moert_mesh *mesh, const moert_batch *batch) {
    const moert_span mine = {batch->first_sequence, batch->sequences, batch->total_sequences};
    return moert_comm_gather_spans(mesh->world, mine, mesh->spans);
}

void moert_mesh_forward_only(moert_mesh *mesh) {
    mesh->everyone.forward_only = mesh->owners.forward_only = true;
}

moert_status moert_mesh_scratch(moert_mesh *mesh, moert_scratch which, size_t floats,
                                moert_buffer **buffer) {
    MOERT_TRY(moert_buffer_reserve(mesh->device, floats * sizeof(float), &mesh->scratch[which]));
    *buffer = mesh->scratch[which];
    return MOERT_OK;
}

moert_status moert_mesh_window(moert_mesh *mesh, moert_shared_window which, size_t width,
                               moert_window **window) {
    if (mesh->windows[which] == NULL || mesh->window_width[which] != width) {
        moert_window_destroy(mesh->windows[which]);
        mesh->windows[which] = NULL;
        const bool bf16 = which == MOERT_WINDOW_BF16 || which == MOERT_WINDOW_ROUTE_BF16;
        MOERT_TRY((bf16 ? moert_window_create_bf16 : moert_window_create)(mesh->exchange, width,
                                                                          &mesh->windows[which]));
        mesh->window_width[which] = width;
    }
    *window = mesh->windows[which];
    return MOERT_OK;
}

// run: check=1,2 all=3,4,2san
/* Wrong uses of a layer are errors with a message, the same on all ranks: options that differ
 * between ranks, sizes that overflow, calls out of order, wrong buffers and batches. */
#include "base/memory.h"
#include "context/context.h"
#include "layer/block.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

static moert_layer_options form(void) {
    return layer_form(20, 12);
}

/* ---- options ---- */

/* Changes one field on the last rank only. */
#define CHANGE(name, statement, text)                                                              \
    static void change_##name(moert_layer_options *o) {                                            \
        statement;                                                                                 \
    }                                                                                              \
    static const char *const differs_##name = text;
CHANGE(hidden, o->hidden = 24, "has hidden=24, but rank 0 has hidden=20")
CHANGE(shared, o->shared_intermediate = 7, "has shared_intermediate=7, but rank 0 has")
CHANGE(experts, o->router.experts = 6, "has router.experts=6, but rank 0 has router.experts=5")
CHANGE(scale, o->router.scale = 1.5f, "has router.scale=1.5, but rank 0 has router.scale=1")
CHANGE(alpha, o->glu.alpha = 1.702f, "has glu.alpha=1.702")
CHANGE(precision, o->precision = MOERT_PRECISION_BF16, "has precision=1, but rank 0 has")
CHANGE(deferred, o->deferred_wgrad = true, "has deferred_wgrad=1, but rank 0 has")
CHANGE(combine, o->combine = MOERT_COMBINE_BF16, "has combine=1, but rank 0 has combine=0")

TEST(test_ranks_with_other_options_are_refused_and_named) {
    const struct {
        void (*change)(moert_layer_options *o);
        const char *text;
    } rows[] = {{change_hidden, differs_hidden},     {change_shared, differs_shared},
                {change_experts, differs_experts},   {change_scale, differs_scale},
                {change_alpha, differs_alpha},       {change_precision, differs_precision},
                {change_deferred, differs_deferred}, {change_combine, differs_combine}};
    moert_mesh *mesh = open_mesh(0);
    for (size_t i = 0; i < MOERT_COUNT(rows) && test_ranks > 1; i++) {
        moert_layer_options options = form();
        moert_layer *layer = NULL;
        char text[256];
        if (test_rank + 1 == test_ranks)
            rows[i].change(&options);
        snprintf(text, sizeof text, "rank %zu (%s): %s", test_ranks - 1,
                 moert_comm_host(test_comm, test_ranks - 1), rows[i].text);
        ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, &layer), MOERT_ERROR_USAGE, text);
    }
}

TEST(test_meshes_of_other_groups_are_refused) {
    moert_mesh *mesh = NULL;
    if (test_ranks == 1)
        return;
    const size_t ep = test_rank + 1 == test_ranks ? 1 : test_ranks;
    ASSERT_FAILS_ON_ALL(moert_mesh_create(test_context, ep, &mesh), MOERT_ERROR_USAGE, "has ep=1");
}

TEST(test_sizes_that_overflow_are_refused) {
    moert_mesh *mesh = open_mesh(0);
    const size_t huge = (size_t)1 << 62, large = INT32_MAX;
    const struct {
        size_t hidden, intermediate, shared;
    } rows[] = {
        {huge, 12, 0}, {20, huge, 0}, {20, 12, huge}, {large + 1, 12, 0}, {large, large / 2, 0}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_layer_options options = form();
        moert_layer *layer = NULL;
        options.hidden = rows[i].hidden;
        options.intermediate = rows[i].intermediate;
        options.shared_intermediate = rows[i].shared;
        ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, &layer), MOERT_ERROR_USAGE,
                            i < 4 ? "of a layer" : "exceeds the address space");
    }
}

/* ---- programs built with older headers, whose structs end earlier ---- */

/* *given = `whole` up to `bytes`; what follows is not the program's. */
static void cut(void *given, const void *whole, size_t bytes, size_t size) {
    memset(given, 0xA5, size);
    memcpy(given, whole, bytes);
    memcpy(given, &bytes, sizeof bytes);
}

TEST(test_structs_of_older_headers_give_the_same_bits) {
    const moert_layer_options options = form();
    const moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    const moert_context_options of_context = MOERT_CONTEXT_OPTIONS_INIT;
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const size_t n = run.batch.tokens * options.hidden;
    moert_context_options old_context;
    moert_layer_options old_options;
    moert_layer_losses old_losses;
    moert_batch old_batch;
    moert_context *context;
    moert_layer *layer;
    moert_pass *pass;
    cut(&old_context, &of_context, offsetof(moert_context_options, cl_queue) + sizeof(void *),
        sizeof old_context);
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &old_context, &context));
    moert_context_destroy(context);
    cut(&old_options, &options, offsetof(moert_layer_options, combine) + sizeof(moert_combine),
        sizeof old_options);
    ASSERT_OK_ON_ALL(moert_layer_create(run.mesh, &old_options, &layer));
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++) {
        const moert_buffer *weight = moert_layer_weight(run.layer, (moert_layer_tensor)i);
        if (weight != NULL)
            ASSERT_OK(moert_buffer_copy(weight, 0, moert_layer_weight(layer, (moert_layer_tensor)i),
                                        0, moert_buffer_bytes(weight)));
    }
    cut(&old_batch, &run.batch, offsetof(moert_batch, index), sizeof old_batch);
    cut(&old_losses, &losses, offsetof(moert_layer_losses, weight_gradient), sizeof old_losses);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    ASSERT_OK_ON_ALL(moert_pass_backward(run.pass, run.dy, NULL, run.dx));
    moert_buffer *y = unset_floats(n), *dx = unset_floats(n);
    ASSERT_OK_ON_ALL(moert_layer_forward(layer, &old_batch, run.x, y, &pass));
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, &old_losses, dx));
    ASSERT_ON_ALL(
        memcmp(download_floats(y, n), download_floats(run.y, n), n * sizeof(float)) == 0 &&
        memcmp(download_floats(dx, n), download_floats(run.dx, n), n * sizeof(float)) == 0);
    moert_layer_destroy(layer);
    layer_run_close(&run);
}

/* ---- order ---- */

static moert_status backward(layer_run *run, moert_pass *pass, bool accumulate) {
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    losses.accumulate = accumulate;
    return moert_pass_backward(pass, run->dy, &losses, run->dx);
}

static moert_pass *forward(layer_run *run) {
    moert_pass *pass = NULL;
    ASSERT_OK_ON_ALL(moert_layer_forward(run->layer, &run->batch, run->x, run->y, &pass));
    return pass;
}

TEST(test_reductions_out_of_order_are_refused) {
    const moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    moert_pass *a = forward(&run), *b = forward(&run), *c = forward(&run);
    ASSERT_OK_ON_ALL(backward(&run, a, false));
    for (int accumulate = 0; accumulate < 2; accumulate++)
        ASSERT_FAILS_ON_ALL(backward(&run, b, accumulate), MOERT_ERROR_USAGE,
                            "moert_layer_reduce is missing");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_FAILS_ON_ALL(moert_layer_reduce(run.layer, true), MOERT_ERROR_USAGE,
                        "without a backward before it");
    ASSERT_FAILS_ON_ALL(moert_pass_wgrad(a), MOERT_ERROR_USAGE, "without deferred_wgrad");
    ASSERT_OK_ON_ALL(backward(&run, b, true));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_OK_ON_ALL(backward(&run, c, false)); /* starts again */
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
    layer_run_close(&run);
}

/* One rank per set of experts: more ranks hold replicas. */
TEST(test_rounded_gradients_that_would_be_added_to_are_refused) {
    const moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 1, &oracle, false);
    const size_t elements = oracle.elements[MOERT_LAYER_W1];
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    moert_pass *pass = forward(&run);
    losses.w1_gradient = unset_bf16(elements);
    losses.accumulate = true;
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx), MOERT_ERROR_USAGE,
                        "w1_gradient of a backward that accumulates");
    losses.accumulate = false;
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx),
                            MOERT_ERROR_UNSUPPORTED, "w1_gradient of experts with replicas");
    else
        ASSERT_OK(moert_pass_backward(pass, run.dy, &losses, run.dx));
    layer_run_close(&run);
    run = layer_run_open(test_context, 0, &oracle, false);
    pass = forward(&run);
    losses.w1_gradient = test_buffer(sizeof(uint16_t));
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx), MOERT_ERROR_USAGE,
                        "w1_gradient of a layer holds");
    losses.w1_gradient = NULL;
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx));
    layer_run_close(&run);
}

TEST(test_deferred_wgrads_of_experts_that_are_computed_again_are_refused) {
    moert_layer_options options = form();
    moert_layer *layer = NULL;
    options.deferred_wgrad = options.recompute_experts = true;
    ASSERT_FAILS_ON_ALL(moert_layer_create(open_mesh(0), &options, &layer), MOERT_ERROR_UNSUPPORTED,
                        "recompute_experts of a layer with deferred_wgrad");
}

TEST(test_deferred_wgrads_out_of_order_are_refused) {
    const moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, true);
    moert_pass *a = forward(&run), *b = forward(&run);
    ASSERT_OK_ON_ALL(backward(&run, a, false));
    ASSERT_FAILS_ON_ALL(moert_layer_reduce(run.layer, true), MOERT_ERROR_USAGE,
                        "moert_pass_wgrad is missing");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_OK_ON_ALL(backward(&run, b, true));
    ASSERT_FAILS_ON_ALL(moert_pass_wgrad(b), MOERT_ERROR_USAGE, "whose backward was earlier");
    ASSERT_OK_ON_ALL(moert_pass_wgrad(a));
    ASSERT_FAILS_ON_ALL(moert_pass_wgrad(a), MOERT_ERROR_USAGE, "a second time");
    moert_pass_destroy(b);
    ASSERT_FAILS_ON_ALL(moert_layer_reduce(run.layer, true), MOERT_ERROR_USAGE,
                        "a pass was destroyed before it");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    a = forward(&run);
    ASSERT_OK_ON_ALL(backward(&run, a, false)); /* starts again */
    ASSERT_OK_ON_ALL(moert_pass_wgrad(a));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
    layer_run_close(&run);
}

/* ---- placements ---- */

/* The placement of a layer with two slots more on each rank than it needs, if there are so many
 * experts: contiguous blocks. */
static moert_layer_options form_with_slots(void) {
    moert_layer_options options = form();
    const size_t experts = options.router.experts;
    options.slots = moert_min(moert_ceil_div(experts, test_ranks) + 2, experts);
    return options;
}

TEST(test_placements_are_checked) {
    moert_layer_options options = form_with_slots();
    const size_t slots = options.slots * test_ranks;
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, test_ranks, &oracle, false);
    uint32_t expert[64], other[64];
    assert_in_range(slots, options.router.experts, MOERT_COUNT(expert));
    memcpy(expert, moert_layer_placement(run.layer)->expert, slots * sizeof *expert);
    ASSERT_ON_ALL(moert_layer_expert(run.layer, 0) == expert[test_rank * options.slots]);
    ASSERT_ON_ALL(moert_layer_expert(run.layer, options.slots) == MOERT_LAYER_NO_EXPERT);
    memcpy(other, expert, sizeof other);
    other[1] = other[0];
    ASSERT_FAILS_ON_ALL(moert_layer_place(run.layer, other), MOERT_ERROR_USAGE,
                        "each has one slot");
    other[1] = MOERT_LAYER_NO_EXPERT;
    ASSERT_FAILS_ON_ALL(moert_layer_place(run.layer, other), MOERT_ERROR_USAGE, "has slots for");
    ASSERT_FAILS_ON_ALL(moert_layer_place(run.layer, NULL), MOERT_ERROR_USAGE, "expert is NULL");
    moert_pass *pass = forward(&run);
    ASSERT_FAILS_ON_ALL(moert_layer_place(run.layer, expert), MOERT_ERROR_USAGE, "is alive");
    moert_pass_destroy(pass);
    ASSERT_OK_ON_ALL(moert_layer_place(run.layer, expert));
    if (test_ranks > 1 && test_rank == 1) {
        expert[0] ^= expert[1];
        expert[1] ^= expert[0];
        expert[0] ^= expert[1];
    }
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(moert_layer_place(run.layer, expert), MOERT_ERROR_USAGE,
                            "all ranks must place the experts alike");
    layer_run_close(&run);
}

TEST(test_slots_that_do_not_fit_are_refused) {
    moert_mesh *mesh = open_mesh(0);
    moert_layer_options options = form();
    moert_layer *layer = NULL;
    options.slots = options.router.experts + 1;
    ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, &layer), MOERT_ERROR_USAGE,
                        "slots of a layer is");
    options.slots = 0;
    ASSERT_OK_ON_ALL(moert_layer_create(mesh, &options, &layer));
    const uint32_t expert[64] = {0};
    ASSERT_FAILS_ON_ALL(moert_layer_place(layer, expert), MOERT_ERROR_USAGE, "without slots");
    moert_layer_destroy(layer);
}

/* ---- buffers and batches ---- */

TEST(test_gradients_that_overlap_inputs_are_refused) {
    moert_layer_options options = form();
    options.shared_intermediate = 7;
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    moert_buffer *view = NULL;
    moert_pass *pass = NULL;
    ASSERT_OK_ON_ALL(moert_buffer_view(run.dy, 0, moert_buffer_bytes(run.dy), &view));
    owned_buffer(view);
    ASSERT_FAILS_ON_ALL(moert_layer_forward(run.layer, &run.batch, run.x, run.x, &pass),
                        MOERT_ERROR_USAGE, "y overlaps x");
    pass = forward(&run);
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, NULL, run.dy), MOERT_ERROR_USAGE,
                        "dx overlaps dy");
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, NULL, view), MOERT_ERROR_USAGE,
                        "dx overlaps dy");
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, NULL, (moert_buffer *)run.x),
                        MOERT_ERROR_USAGE, "dx overlaps x");
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, NULL, run.dx));
    layer_run_close(&run);
}

TEST(test_wrong_buffers_are_refused_on_all_ranks) {
    const moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    moert_context *other;
    moert_buffer *foreign = NULL, *const none = test_rank == 0 ? NULL : run.dx;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, NULL, &other));
    ASSERT_OK_ON_ALL(moert_buffer_create(moert_context_device(other), 4096, &foreign));
    ASSERT_FAILS_ON_ALL(
        moert_layer_forward(run.layer, &run.batch, run.x, test_rank == 0 ? foreign : run.y, NULL),
        MOERT_ERROR_USAGE, "y of a layer is on another device");
    moert_pass *pass = forward(&run);
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, NULL, none), MOERT_ERROR_USAGE,
                        "dx of a layer is NULL");
    ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, test_rank == 0 ? foreign : run.dy, NULL, run.dx),
                        MOERT_ERROR_USAGE, "dy of a layer is on another device");
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, NULL, run.dx));
    layer_run_close(&run);
    moert_buffer_destroy(foreign);
    moert_context_destroy(other);
}

/* Rank 0's batch is wrong. */
TEST(test_wrong_batches_are_refused_on_all_ranks) {
    const moert_layer_options options = form();
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(test_context, 0, &oracle, false);
    const uint32_t t = (uint32_t)run.batch.tokens;
    const struct {
        uint32_t ends[2];
        size_t sequences, tokens;
        const char *text;
    } rows[] = {{{1, t - 1}, 2, t, "the last of a batch's ends"},
                {{1, t + 1}, 2, t, "ends[1] of a batch"},
                {{3, 2}, 2, t, "ends[1] of a batch"},
                {{1, t}, PTRDIFF_MAX, t, "exceed its total"},
                {{1, t}, 2, (size_t)1 << 40, "tokens; at most"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_batch batch = run.batch;
        if (test_rank == 0) {
            batch.tokens = rows[i].tokens;
            batch.sequences = rows[i].sequences;
            batch.ends = upload(rows[i].ends, sizeof rows[i].ends);
        }
        ASSERT_FAILS_ON_ALL(moert_layer_forward(run.layer, &batch, run.x, run.y, NULL),
                            MOERT_ERROR_USAGE, rows[i].text);
    }
    ASSERT_OK_ON_ALL(moert_layer_forward(run.layer, &run.batch, run.x, run.y, NULL));
    layer_run_close(&run);
}

TEST(test_missing_arguments_are_named) {
    const moert_layer_options options = form();
    moert_mesh *mesh = open_mesh(0), *no_mesh = NULL;
    moert_context *context = NULL;
    moert_layer *layer = NULL;
    ASSERT_FAILS_ON_ALL(moert_mesh_create(NULL, 0, &no_mesh), MOERT_ERROR_USAGE, "context is NULL");
    ASSERT_FAILS_ON_ALL(moert_mesh_create(test_context, 0, NULL), MOERT_ERROR_USAGE,
                        "mesh is NULL");
    ASSERT_FAILS_ON_ALL(moert_layer_create(NULL, &options, &layer), MOERT_ERROR_USAGE,
                        "mesh is NULL");
    ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, NULL, &layer), MOERT_ERROR_USAGE,
                        "moert_layer_options is NULL");
    ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, NULL), MOERT_ERROR_USAGE,
                        "layer is NULL");
    ASSERT_FAILS_ON_ALL(moert_context_create(MPI_COMM_WORLD, NULL, NULL), MOERT_ERROR_USAGE,
                        "context is NULL");
    ASSERT_FAILS_ON_ALL(moert_context_create(MPI_COMM_NULL, NULL, &context), MOERT_ERROR_USAGE,
                        "comm is MPI_COMM_NULL");
    ASSERT_OK_ON_ALL(moert_layer_create(mesh, &options, &layer));
    ASSERT_FAILS_ON_ALL(moert_layer_forward(layer, NULL, NULL, NULL, NULL), MOERT_ERROR_USAGE,
                        "moert_batch is NULL");
    const moert_status calls[] = {moert_layer_forward(NULL, NULL, NULL, NULL, NULL),
                                  moert_layer_initialize(NULL, 1, 1.0),
                                  moert_pass_backward(NULL, NULL, NULL, NULL),
                                  moert_pass_wgrad(NULL),
                                  moert_layer_reduce(NULL, true),
                                  moert_mesh_settle(NULL)};
    for (size_t i = 0; i < MOERT_COUNT(calls); i++)
        ASSERT_ON_ALL(calls[i] == MOERT_ERROR_USAGE);
    ASSERT_ON_ALL(moert_layer_weight(layer, MOERT_LAYER_TENSORS) == NULL &&
                  moert_layer_weight(layer, (moert_layer_tensor)-1) == NULL &&
                  moert_layer_gradient(layer, (moert_layer_tensor)99) == NULL &&
                  moert_layer_weight(NULL, MOERT_LAYER_W1) == NULL &&
                  moert_pass_expert_counts(NULL) == NULL && moert_pass_rank_counts(NULL) == NULL);
    moert_layer_destroy(layer);
}

MPI_TESTS(open_test_context, close_test_context)

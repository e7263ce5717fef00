// run: check=1,2 all=3,4,2san
/* Wrong uses of a layer are errors with a message, the same on all ranks: options that differ
 * between ranks, sizes that overflow, calls out of order, wrong buffers and batches. */
#include "context/context.h"
#include "layer/block.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

/* ---- options ---- */

/* A field of the options, and its value in a row of the tables below. */
typedef struct change {
    size_t offset, bytes;
    const void *value;
} change;
#define SET(field, type, ...)                                                                      \
    {                                                                                              \
        offsetof(moert_layer_options, field), sizeof(type), &(const type) {                        \
            __VA_ARGS__                                                                            \
        }                                                                                          \
    }

static void apply(change c, moert_layer_options *options) {
    if (c.bytes > 0)
        memcpy((char *)options + c.offset, c.value, c.bytes);
}

TEST(test_ranks_with_other_options_are_refused_and_named) {
    const struct {
        change change; /* only the last rank's options get this change */
        const char *text;
    } rows[] = {
        {SET(hidden, size_t, 24), "has hidden=24, but rank 0 has hidden=20"},
        {SET(shared_intermediate, size_t, 7), "has shared_intermediate=7, but rank 0 has"},
        {SET(router.experts, size_t, 6), "has router.experts=6, but rank 0 has router.experts=5"},
        {SET(router.scale, float, 1.5f), "has router.scale=1.5, but rank 0 has router.scale=1"},
        {SET(glu.alpha, float, 1.702f), "has glu.alpha=1.702"},
        {SET(precision, moert_precision, MOERT_PRECISION_BF16), "has precision=1, but rank 0 has"},
        {SET(deferred_wgrad, bool, true), "has deferred_wgrad=1, but rank 0 has"},
        {SET(combine, moert_combine, MOERT_COMBINE_BF16),
         "has combine=1, but rank 0 has combine=0"},
    };
    moert_mesh *mesh = open_mesh(0), *other = NULL;
    const size_t last = test_ranks - 1;
    for (size_t i = 0; i < MOERT_COUNT(rows) && last > 0; i++) {
        moert_layer_options options = layer_form(20, 12);
        moert_layer *layer = NULL;
        if (test_rank == last)
            apply(rows[i].change, &options);
        ASSERT_REFUSED(
            moert_layer_create(mesh, &options, &layer),
            titled("rank %zu (%s): %s", last, moert_comm_host(test_comm, last), rows[i].text));
    }
    if (last > 0)
        ASSERT_REFUSED(moert_mesh_create(test_context, test_rank == last ? 1 : test_ranks, &other),
                       "has ep=1");
}

TEST(test_impossible_recipes_are_refused) {
    enum {
        NVFP4 = MOERT_ROUND_TO(MOERT_FORMAT_NVFP4),
        MXFP4 = MOERT_ROUND_TO(MOERT_FORMAT_MXFP4),
        MXFP8 = MOERT_ROUND_TO(MOERT_FORMAT_MXFP8_E4M3)
    };
    const struct {
        const char *text;
        moert_recipe recipe;
    } rows[] = {
        {"x of a recipe is 0x6", {.x = 6}},
        {"x of a recipe is 0x105", {.x = 5 | MOERT_ROUND_TILES}},
        {"weight of a recipe is 0x204", {.weight = NVFP4 | MOERT_ROUND_STOCHASTIC}},
        {"dy of a recipe is 0x200", {.dy = MOERT_ROUND_STOCHASTIC}},
        {"dy of a recipe rounds mxfp8-e4m3", {.dy = MXFP8 | MOERT_ROUND_STOCHASTIC}},
        {"wgrad_x of a recipe rotates blocks of mxfp4", {.wgrad_x = MXFP4 | MOERT_ROUND_HADAMARD}},
        {"only one of wgrad_x", {.wgrad_x = NVFP4 | MOERT_ROUND_HADAMARD, .wgrad_dy = NVFP4}},
        {"wgrad_dy of a recipe is 0x804", {.wgrad_dy = NVFP4 | 0x800}},
        {"bf16_last of a recipe is 1.5", {.bf16_last = 1.5}},
        {"bf16_finish of a recipe is nan", {.bf16_finish = NAN}},
    };
    moert_mesh *mesh = open_mesh(0);
    moert_layer *layer = NULL;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_layer_options options = layer_form(20, 12);
        options.precision = MOERT_PRECISION_RECIPE;
        options.recipe = rows[i].recipe;
        ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, &layer), MOERT_ERROR_USAGE,
                            rows[i].text);
    }
}

/* Shares of layers are rounded up to whole layers; one layer is left unless a share is 1. */
TEST(test_recipes_keep_the_first_and_last_layers_in_bf16) {
    static const struct {
        double first, last;
        const char *kept; /* for each layer, whether it is kept */
    } rows[] = {{0.0, 0.15, "0"},        {0.0, 0.15, "01"},     {0.0, 0.15, "000001"},
                {0.0, 0.15, "00000011"}, {0.1, 0.3, "1000111"}, {0.9, 0.9, "01"},
                {0.9, 0.9, "0111"},      {0.5, 0.0, "110"},     {0.0, 1.0, "1"},
                {1.0, 0.0, "11"},        {0.0, 0.0, "000"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_recipe recipe = {.bf16_first = rows[i].first, .bf16_last = rows[i].last};
        const size_t layers = strlen(rows[i].kept);
        for (size_t l = 0; l < layers; l++)
            assert_int_equal(moert_recipe_keeps_bf16(&recipe, l, layers), rows[i].kept[l] == '1');
    }
}

TEST(test_impossible_layers_are_refused) {
    const struct {
        moert_status status;
        const char *text;
        change changes[2];
    } rows[] = {
        {MOERT_ERROR_USAGE, "6 experts per token", {SET(router.topk, size_t, 6)}},
        {MOERT_ERROR_USAGE, "hidden", {SET(hidden, size_t, 0)}},
        {MOERT_ERROR_USAGE, "hidden of a layer", {SET(hidden, size_t, (size_t)1 << 62)}},
        {MOERT_ERROR_USAGE, "hidden of a layer", {SET(hidden, size_t, (size_t)1 << 31)}},
        {MOERT_ERROR_USAGE, "of a layer", {SET(intermediate, size_t, (size_t)1 << 62)}},
        {MOERT_ERROR_USAGE, "of a layer", {SET(shared_intermediate, size_t, (size_t)1 << 62)}},
        {MOERT_ERROR_USAGE,
         "exceeds the address space",
         {SET(hidden, size_t, INT32_MAX), SET(intermediate, size_t, INT32_MAX / 2)}},
        {MOERT_ERROR_USAGE, "precision", {SET(precision, moert_precision, 7)}},
        {MOERT_ERROR_USAGE, "dense", {SET(dense, moert_precision, MOERT_PRECISION_MXFP8)}},
        {MOERT_ERROR_USAGE, "no activation 9", {SET(glu.activation, int, 9)}},
        {MOERT_ERROR_USAGE, "dispatch", {SET(dispatch, moert_dispatch, 3)}},
        {MOERT_ERROR_USAGE, "combine", {SET(combine, moert_combine, 2)}},
        {MOERT_ERROR_UNSUPPORTED,
         "33",
         {SET(dispatch, moert_dispatch, MOERT_DISPATCH_BF16), SET(hidden, size_t, 33)}},
        {MOERT_ERROR_UNSUPPORTED,
         "combined as bf16",
         {SET(combine, moert_combine, MOERT_COMBINE_BF16), SET(hidden, size_t, 33)}},
        {MOERT_ERROR_UNSUPPORTED,
         "recompute_experts cannot be used with deferred_wgrad",
         {SET(deferred_wgrad, bool, true), SET(recompute_experts, bool, true)}},
        {MOERT_ERROR_USAGE, "slots of a layer is", {SET(slots, size_t, 6)}},
    };
    moert_mesh *mesh = open_mesh(0);
    moert_layer *layer = NULL;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_layer_options options = layer_form(20, 12);
        apply(rows[i].changes[0], &options);
        apply(rows[i].changes[1], &options);
        ASSERT_FAILS_ON_ALL(moert_layer_create(mesh, &options, &layer), rows[i].status,
                            rows[i].text);
    }
    moert_layer_options single = layer_form(20, 12);
    single.router.experts = single.router.topk = 1;
    const moert_status status = moert_layer_create(mesh, &single, &layer);
    ASSERT_ON_ALL(status == (test_ranks > 1 ? MOERT_ERROR_USAGE : MOERT_OK));
    moert_layer_destroy(layer);
}

/* ---- programs built with older headers, whose structs end earlier ---- */

/* *given gets the first `bytes` of `whole`; a program with older headers does not own the bytes
 * that follow. */
static void cut(void *given, const void *whole, size_t bytes, size_t size) {
    memset(given, 0xA5, size);
    memcpy(given, whole, bytes);
    memcpy(given, &bytes, sizeof bytes);
}

TEST(test_structs_of_older_headers_give_the_same_bits) {
    const moert_layer_options options = layer_form(20, 12);
    const moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    const moert_context_options of_context = MOERT_CONTEXT_OPTIONS_INIT;
    layer_run run = layer_run_of(options), old = run;
    moert_context_options old_context;
    moert_layer_options old_options;
    moert_layer_losses old_losses;
    moert_context *context;
    cut(&old_context, &of_context, offsetof(moert_context_options, cl_queue) + sizeof(void *),
        sizeof old_context);
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, &old_context, &context));
    moert_context_destroy(context);
    cut(&old_options, &options, offsetof(moert_layer_options, combine) + sizeof(moert_combine),
        sizeof old_options);
    cut(&old_losses, &losses, offsetof(moert_layer_losses, weight_gradient), sizeof old_losses);
    cut(&old.batch, &run.batch, offsetof(moert_batch, index), sizeof old.batch);
    old.layer = open_layer(run.mesh, &old_options);
    old.y = unset_floats(run.batch.tokens * options.hidden);
    old.dx = unset_floats(run.batch.tokens * options.hidden);
    copy_weights(run.layer, old.layer);
    ASSERT_OK_ON_ALL(layer_run_forward(&run));
    ASSERT_OK_ON_ALL(moert_pass_backward(run.pass, run.dy, NULL, run.dx));
    ASSERT_OK_ON_ALL(layer_run_forward(&old));
    ASSERT_OK_ON_ALL(moert_pass_backward(old.pass, old.dy, &old_losses, old.dx));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
    ASSERT_OK_ON_ALL(moert_layer_reduce(old.layer, true));
    ASSERT_ON_ALL(layer_run_same(&run, &old));
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
    layer_run run = layer_run_of(layer_form(20, 12));
    moert_pass *a = forward(&run), *b = forward(&run), *c = forward(&run);
    ASSERT_OK_ON_ALL(backward(&run, a, false));
    ASSERT_REFUSED(backward(&run, b, false), "moert_layer_reduce is missing");
    ASSERT_REFUSED(backward(&run, b, true), "moert_layer_reduce is missing");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_REFUSED(moert_layer_reduce(run.layer, true), "without a backward before it");
    ASSERT_REFUSED(moert_pass_wgrad(a), "needs a layer with deferred_wgrad");
    ASSERT_OK_ON_ALL(backward(&run, b, true));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_OK_ON_ALL(backward(&run, c, false)); /* starts again */
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
}

TEST(test_deferred_wgrads_out_of_order_are_refused) {
    moert_layer_options options = layer_form(20, 12);
    options.deferred_wgrad = true;
    layer_run run = layer_run_of(options);
    ASSERT_REFUSED(moert_layer_reduce(run.layer, true), "without a backward before it");
    moert_pass *a = forward(&run), *b = forward(&run);
    ASSERT_REFUSED(moert_pass_wgrad(a), "wgrad was called without a backward before it");
    ASSERT_OK_ON_ALL(backward(&run, a, false));
    ASSERT_REFUSED(moert_layer_reduce(run.layer, true), "moert_pass_wgrad is missing");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    ASSERT_OK_ON_ALL(backward(&run, b, true));
    ASSERT_REFUSED(moert_pass_wgrad(b), "whose backward was earlier");
    ASSERT_OK_ON_ALL(moert_pass_wgrad(a));
    ASSERT_REFUSED(moert_pass_wgrad(a), "a second time");
    moert_pass_destroy(b);
    ASSERT_REFUSED(moert_layer_reduce(run.layer, true),
                   "a pass was destroyed without moert_pass_wgrad");
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, false));
    a = forward(&run);
    ASSERT_OK_ON_ALL(backward(&run, a, false)); /* starts again */
    ASSERT_OK_ON_ALL(moert_pass_wgrad(a));
    ASSERT_OK_ON_ALL(moert_layer_reduce(run.layer, true));
    ASSERT_REFUSED(moert_layer_reduce(run.layer, true), "without a backward before it");
    ASSERT_REFUSED(backward(&run, a, false), "without a forward");
}

/* With one rank per set of experts, all other ranks are replicas. */
TEST(test_rounded_gradients_that_would_be_added_to_are_refused) {
    const moert_layer_options options = layer_form(20, 12);
    const oracle_layer oracle = oracle_layer_create(&options, LAYER_TOKENS);
    layer_run run = layer_run_open(&oracle, (layer_setup){.ep = 1});
    const size_t elements = oracle.elements[MOERT_LAYER_W1];
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    moert_pass *pass = forward(&run);
    losses.w1_gradient = unset_bf16(elements);
    losses.accumulate = true;
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, &losses, run.dx),
                   "w1_gradient is given to a backward that accumulates");
    losses.accumulate = false;
    if (test_ranks > 1)
        ASSERT_FAILS_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx),
                            MOERT_ERROR_UNSUPPORTED,
                            "w1_gradient is given for experts with replicas");
    else
        ASSERT_OK(moert_pass_backward(pass, run.dy, &losses, run.dx));
    run = layer_run_open(&oracle, (layer_setup){0});
    pass = forward(&run);
    losses.w1_gradient = test_buffer(sizeof(uint16_t));
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, &losses, run.dx),
                   "w1_gradient of a layer holds");
    losses.w1_gradient = NULL;
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, &losses, run.dx));
}

/* ---- placements ---- */

/* On each rank the layer has two more slots than it needs, but at most one per expert. The first
 * placement is in contiguous blocks. */
TEST(test_placements_are_checked) {
    moert_layer_options options = layer_form(20, 12);
    const size_t experts = options.router.experts;
    options.slots = moert_min(moert_ceil_div(experts, test_ranks) + 2, experts);
    const size_t slots = options.slots * test_ranks;
    layer_run run = layer_run_of(options);
    uint32_t expert[64], other[64] = {0};
    assert_in_range(slots, experts, MOERT_COUNT(expert));
    memcpy(expert, moert_layer_placement(run.layer)->expert, slots * sizeof *expert);
    const struct {
        size_t slot;
        uint32_t expert;
        const char *text;
    } rows[] = {{1, expert[0], "each has one slot"},
                {1, MOERT_LAYER_NO_EXPERT, "has slots for"},
                {options.slots - 1, MOERT_LAYER_CLONE | expert[0], "in another slot"},
                {options.slots - 1, MOERT_LAYER_CLONE | 5, "there are 5 experts"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        memcpy(other, expert, sizeof other);
        other[rows[i].slot] = rows[i].expert;
        if (test_ranks > 1 || i < 2) /* a single rank has no empty slots */
            ASSERT_REFUSED(moert_layer_place(run.layer, other), rows[i].text);
    }
    ASSERT_ON_ALL(moert_layer_expert(run.layer, 0) == expert[test_rank * options.slots]);
    ASSERT_ON_ALL(moert_layer_expert(run.layer, options.slots) == MOERT_LAYER_NO_EXPERT);
    ASSERT_REFUSED(moert_layer_place(run.layer, NULL), "expert is NULL");
    moert_pass *pass = forward(&run);
    ASSERT_REFUSED(moert_layer_place(run.layer, expert), "still exists");
    moert_pass_destroy(pass);
    ASSERT_OK_ON_ALL(moert_layer_place(run.layer, expert));
    memcpy(other, expert, sizeof other);
    if (test_rank == 1) {
        other[0] = expert[1];
        other[1] = expert[0];
    }
    if (test_ranks > 1)
        ASSERT_REFUSED(moert_layer_place(run.layer, other),
                       "all ranks must place the experts alike");
    options.slots = 0;
    ASSERT_REFUSED(moert_layer_place(open_layer(run.mesh, &options), expert), "without slots");
}

/* ---- buffers and batches ---- */

TEST(test_gradients_that_overlap_inputs_are_refused) {
    moert_layer_options options = layer_form(20, 12);
    options.shared_intermediate = 7;
    layer_run run = layer_run_of(options);
    moert_buffer *view = NULL;
    moert_pass *pass = NULL;
    ASSERT_OK_ON_ALL(moert_buffer_view(run.dy, 0, moert_buffer_bytes(run.dy), &view));
    owned_buffer(view);
    ASSERT_REFUSED(moert_layer_forward(run.layer, &run.batch, run.x, run.x, &pass), "y overlaps x");
    pass = forward(&run);
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, NULL, run.dy), "dx overlaps dy");
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, NULL, view), "dx overlaps dy");
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, NULL, (moert_buffer *)run.x), "dx overlaps x");
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, NULL, run.dx));
}

TEST(test_wrong_buffers_are_refused_on_all_ranks) {
    layer_run run = layer_run_of(layer_form(20, 12));
    moert_context *other;
    moert_buffer *foreign = NULL, *const none = test_rank == 0 ? NULL : run.dx;
    ASSERT_OK_ON_ALL(moert_context_create(MPI_COMM_WORLD, NULL, &other));
    ASSERT_OK_ON_ALL(moert_buffer_create(moert_context_device(other), 4096, &foreign));
    ASSERT_REFUSED(
        moert_layer_forward(run.layer, &run.batch, run.x, test_rank == 0 ? foreign : run.y, NULL),
        "y of a layer is on another device");
    run.batch.bf16 = foreign;
    ASSERT_REFUSED(moert_layer_forward(run.layer, &run.batch, run.x, run.y, NULL),
                   "bf16 of a layer is on another device");
    run.batch.bf16 = NULL;
    moert_pass *pass = forward(&run);
    moert_layer_losses losses = MOERT_LAYER_LOSSES_INIT;
    losses.dy_bf16 = foreign;
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, &losses, run.dx),
                   "dy_bf16 of a layer is on another device");
    ASSERT_REFUSED(moert_pass_backward(pass, run.dy, NULL, none), "dx of a layer is NULL");
    ASSERT_REFUSED(moert_pass_backward(pass, test_rank == 0 ? foreign : run.dy, NULL, run.dx),
                   "dy of a layer is on another device");
    ASSERT_OK_ON_ALL(moert_pass_backward(pass, run.dy, NULL, run.dx));
    moert_buffer_destroy(foreign);
    moert_context_destroy(other);
}

/* Rank 0's batch is wrong. */
TEST(test_wrong_batches_are_refused_on_all_ranks) {
    layer_run run = layer_run_of(layer_form(20, 12));
    const uint32_t t = (uint32_t)run.batch.tokens;
    const struct {
        uint32_t ends[2];
        size_t sequences, tokens;
        const char *text;
    } rows[] = {{{1, t - 1}, 2, t, "the last of a batch's ends"},
                {{1, t + 1}, 2, t, "ends[1] of a batch"},
                {{3, 2}, 2, t, "ends[1] of a batch"},
                {{1, t}, 0, t, "batch"},
                {{1, t}, PTRDIFF_MAX, t, "exceed its total"},
                {{1, t}, 2, (size_t)1 << 40, "tokens, above the limit"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_batch batch = run.batch;
        if (test_rank == 0) {
            batch.tokens = rows[i].tokens;
            batch.sequences = rows[i].sequences;
            batch.ends = upload(rows[i].ends, sizeof rows[i].ends);
        }
        ASSERT_REFUSED(moert_layer_forward(run.layer, &batch, run.x, run.y, NULL), rows[i].text);
    }
    ASSERT_OK_ON_ALL(moert_layer_forward(run.layer, &run.batch, run.x, run.y, NULL));
}

TEST(test_missing_arguments_are_named) {
    const moert_layer_options options = layer_form(20, 12);
    moert_mesh *mesh = open_mesh(0), *no_mesh = NULL;
    moert_context *context = NULL;
    moert_layer *layer = NULL;
    ASSERT_REFUSED(moert_mesh_create(NULL, 0, &no_mesh), "context is NULL");
    ASSERT_REFUSED(moert_mesh_create(test_context, 0, NULL), "mesh is NULL");
    ASSERT_REFUSED(moert_layer_create(NULL, &options, &layer), "mesh is NULL");
    ASSERT_REFUSED(moert_layer_create(mesh, NULL, &layer), "moert_layer_options is NULL");
    ASSERT_REFUSED(moert_layer_create(mesh, &options, NULL), "layer is NULL");
    ASSERT_REFUSED(moert_context_create(MPI_COMM_WORLD, NULL, NULL), "context is NULL");
    ASSERT_REFUSED(moert_context_create(MPI_COMM_NULL, NULL, &context), "comm is MPI_COMM_NULL");
    ASSERT_OK_ON_ALL(moert_layer_create(mesh, &options, &layer));
    ASSERT_REFUSED(moert_layer_forward(layer, NULL, NULL, NULL, NULL), "moert_batch is NULL");
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

// run: check=2 all=3,4,3san
/* Several ranks (clones) compute the rows of one expert: all results have the bits of a layer
 * without clones. */

#include "base/rng.h"
#include "context/context.h"
#include "device/device.h"
#include "layer/internal.h"
#include "support/layer/layer_run.h"
#include "support/mpi.h"

/* An expert gets about 200 rows, which make up to 4 ranges of 64 rows. */
enum { TOKENS = 40 * LAYER_TOKENS, EXPERTS = 5, MICRO = 2, ROUNDS = 2 };

static moert_layer_options form(size_t hidden, size_t intermediate) {
    moert_layer_options options = layer_form(hidden, intermediate);
    options.slots = EXPERTS;
    return options;
}

/* Puts clones into the empty slots of a layer's contiguous placement: in round 0 clones of each
 * expert on all ranks, in later rounds random ones. */
static void place_clones(const layer_run *run, unsigned round) {
    const moert_expert_map *map = moert_layer_placement(run->layer);
    uint32_t expert[4 * EXPERTS];
    const size_t slots = moert_expert_map_slots(map);
    memcpy(expert, map->expert, slots * sizeof *expert);
    for (size_t s = 0; s < slots; s++)
        if (expert[s] == MOERT_LAYER_NO_EXPERT || (expert[s] & MOERT_LAYER_CLONE) != 0)
            expert[s] = MOERT_LAYER_NO_EXPERT;
    for (size_t r = 0; r < map->ranks; r++) {
        uint32_t slot = map->first[r + 1] - 1;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            const bool takes = round == 0 || moert_rng_uniform(round, r, e) < 0.5;
            if (takes && map->rank[e] != r && expert[slot] == MOERT_LAYER_NO_EXPERT)
                expert[slot--] = MOERT_LAYER_CLONE | e;
        }
    }
    ASSERT_OK_ON_ALL(moert_layer_place(run->layer, expert));
}

static void run_steps(layer_run *run) {
    for (size_t m = 0; m < MICRO; m++)
        ASSERT_OK_ON_ALL(layer_run_step(run, m, MICRO));
    layer_run_end(run);
}

/* Whether gradients have the same bits. On GPUs, which may add in another order, nearly equal
 * values suffice. */
static bool same_gradients(const float *a, const float *b, size_t n) {
    float largest = 0.0f, difference = 0.0f;
    for (size_t i = 0; i < n; i++) {
        largest = fmaxf(largest, fabsf(a[i]));
        difference = fmaxf(difference, fabsf(a[i] - b[i]));
    }
    return moert_device_describe(test_device)->is_cpu ? memcmp(a, b, n * sizeof *a) == 0
                                                      : difference <= 1e-5f * largest;
}

static bool same(const layer_results *a, const layer_results *b) {
    bool all = layer_same_rows(a, b);
    for (int i = 0; i < MOERT_LAYER_TENSORS; i++)
        if (a->value[i] != NULL)
            all = all && same_gradients(a->value[i], b->value[i], a->count[i]);
    return all;
}

/* Changes the weights of the second projection of this rank's experts. */
static void change_weights(const layer_run *run) {
    moert_buffer *w2 = moert_layer_weight(run->layer, MOERT_LAYER_W2);
    const size_t n = moert_buffer_bytes(w2) / sizeof(float),
                 each = n / moert_layer_local_experts(run->layer);
    float *values = read_floats(w2, n);
    for (size_t i = 0; i < n; i++)
        values[i] = moert_layer_expert(run->layer, i / each) != MOERT_LAYER_NO_EXPERT
                        ? 0.75f * values[i]
                        : 77.0f;
    ASSERT_OK(moert_buffer_write(w2, 0, values, n * sizeof *values));
    moert_layer_weights_changed(run->layer);
}

/* Runs two rounds of steps with layers in two setups, and compares their results. Before each
 * round, places clones in the layer of the second setup, unless that has exact replicas. */
static void compare(const moert_layer_options *options, layer_setup one, layer_setup other) {
    const size_t before = owned_count();
    const oracle_layer oracle = oracle_layer_create(options, TOKENS);
    layer_run plain = layer_run_open(&oracle, one), cloned = layer_run_open(&oracle, other);
    for (unsigned round = 0; round < ROUNDS; round++) {
        if (!other.exact)
            place_clones(&cloned, round);
        run_steps(&plain);
        run_steps(&cloned);
        const layer_results a = layer_run_collect(&plain), b = layer_run_collect(&cloned);
        ASSERT_ON_ALL(same(&a, &b));
        change_weights(&plain);
        change_weights(&cloned);
    }
    release_since(before);
}

TEST(test_clones_give_the_bits_of_one_expert) {
    moert_layer_options options = form(40, 24);
    compare(&options, (layer_setup){0}, (layer_setup){0});
    compare(&options, (layer_setup){.deferred = true}, (layer_setup){.deferred = true});
    options.expert_biases = options.router_bias = true;
    compare(&options, (layer_setup){0}, (layer_setup){0});
    options.recompute_experts = true;
    compare(&options, (layer_setup){0}, (layer_setup){0});
}

TEST(test_clones_give_the_bits_of_one_expert_in_low_precision) {
    for (moert_precision p = MOERT_PRECISION_BF16; p <= MOERT_PRECISION_NVFP4; p++) {
        moert_layer_options options = form(64, 32);
        options.precision = p;
        compare(&options, (layer_setup){0}, (layer_setup){0});
        options.dispatch = MOERT_DISPATCH_BF16;
        options.combine = MOERT_COMBINE_BF16;
        options.expert_biases = true;
        compare(&options, (layer_setup){0}, (layer_setup){0});
    }
}

TEST(test_clones_work_within_groups_of_experts) {
    const moert_layer_options options = form(40, 24);
    if (test_ranks % 2 == 0)
        compare(&options, (layer_setup){.ep = 2}, (layer_setup){.ep = 2});
}

TEST(test_exact_replicas_give_the_bits_of_one_set) {
    for (size_t ep = 1; ep <= test_ranks; ep++) {
        moert_layer_options options = layer_form(40, 24);
        if (test_ranks % ep != 0)
            continue;
        compare(&options, (layer_setup){0}, (layer_setup){.ep = ep, .exact = true});
        options.expert_biases = true;
        options.precision = MOERT_PRECISION_MXFP8;
        compare(&options, (layer_setup){.deferred = true},
                (layer_setup){.ep = ep, .exact = true, .deferred = true});
    }
}

MPI_TESTS(open_test_context, close_test_context)

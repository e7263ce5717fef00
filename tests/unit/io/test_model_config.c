// run: check=1 all=1san device=0
/* config.json of every family, read and written, and the names of expert tensors. */

#include "base/memory.h"
#include "io/durable.h"
#include "io/model_config.h"
#include "io/safetensors.h"
#include "support/files.h"

/* ---- golden configs ---- */

/* clang-format off */
static const struct golden_config {
    const char *path, *sizes;
    float epsilon;
    const char *router; /* both texts are those of sizes_of() and router_of() */
    moert_family family;
    moert_status whole; /* of the check of the whole model; heads of 1 element are refused */
} goldens[] = {
    {"layer/mixtral-a", "V 32000 H 64 L 32 heads 4/2 x 16 I 96 + 0 theta 1000000", 1e-5f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_MIXTRAL, MOERT_OK},
    {"layer/mixtral-skew", "V 32000 H 32 L 32 heads 4/2 x 8 I 64 + 0 theta 1000000", 1e-5f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_MIXTRAL, MOERT_OK},
    {"layer/qwen3_moe-a", "V 151936 H 64 L 24 heads 32/4 x 2 I 96 + 0 theta 10000", 1e-6f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_QWEN3_MOE, MOERT_OK},
    {"layer/qwen3_moe-skew", "V 151936 H 32 L 24 heads 32/4 x 1 I 64 + 0 theta 10000", 1e-6f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_QWEN3_MOE,
     MOERT_ERROR_FORMAT},
    {"layer/olmoe-a", "V 50304 H 64 L 16 heads 16/16 x 4 I 96 + 0 theta 10000", 1e-5f,
     "top 2 of 8 by softmax x 1, groups 1/1", MOERT_FAMILY_OLMOE, MOERT_OK},
    {"layer/olmoe-skew", "V 50304 H 32 L 16 heads 16/16 x 2 I 64 + 0 theta 10000", 1e-5f,
     "top 2 of 8 by softmax x 1, groups 1/1", MOERT_FAMILY_OLMOE, MOERT_OK},
    {"layer/deepseek_v3-a", "V 129280 H 64 L 61 heads 128/128 x 64 I 96 + 96 theta 10000", 1e-6f,
     "top 2 of 8 by sigmoid, renormalised, x 2.5, groups 2/4", MOERT_FAMILY_DEEPSEEK_V3, MOERT_OK},
    {"layer/deepseek_v3-skew", "V 129280 H 32 L 61 heads 128/128 x 64 I 64 + 64 theta 10000", 1e-6f,
     "top 2 of 8 by sigmoid, renormalised, x 2.5, groups 2/4", MOERT_FAMILY_DEEPSEEK_V3, MOERT_OK},
    {"layer/gpt_oss-a", "V 201088 H 64 L 36 heads 64/8 x 64 I 96 + 0 theta 150000", 1e-5f,
     "top 2 of 8 by softmax of top-k x 1, groups 1/1", MOERT_FAMILY_GPT_OSS, MOERT_OK},
    {"layer/gpt_oss-skew", "V 201088 H 32 L 36 heads 64/8 x 64 I 64 + 0 theta 150000", 1e-5f,
     "top 2 of 8 by softmax of top-k x 1, groups 1/1", MOERT_FAMILY_GPT_OSS, MOERT_OK},
    {"model/mixtral-tiny", "V 256 H 64 L 2 heads 4/2 x 16 I 96 + 0 theta 1000000", 1e-5f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_MIXTRAL, MOERT_OK},
    {"model/mixtral-tiny-aux", "V 256 H 64 L 2 heads 4/2 x 16 I 96 + 0 theta 1000000", 1e-5f,
     "top 2 of 8 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_MIXTRAL, MOERT_OK},
    {"model/qwen3-tiny", "V 256 H 64 L 2 heads 4/2 x 32 I 64 + 0 theta 10000", 1e-6f,
     "top 4 of 16 by softmax, renormalised, x 1, groups 1/1", MOERT_FAMILY_QWEN3_MOE, MOERT_OK},
};
/* clang-format on */

enum { GOLDENS = MOERT_COUNT(goldens) };

static const char *golden_path(size_t index) {
    return titled("tests/golden/%s", goldens[index].path);
}

static moert_model_config read_config(const char *path) {
    moert_model_config config;
    ASSERT_OK(moert_model_config_read(path, &config));
    owned(config.text, free);
    return config;
}

static const char *sizes_of(const moert_model_config *c) {
    return titled("V %zu H %zu L %zu heads %zu/%zu x %zu I %zu + %zu theta %.17g", c->vocabulary,
                  c->hidden, c->layers, c->heads, c->kv_heads, c->head_size, c->intermediate,
                  c->shared_intermediate, c->rope.theta);
}

static const char *router_of(const moert_router_options *r) {
    static const char *const scores[] = {[MOERT_SCORE_SOFTMAX] = "softmax",
                                         [MOERT_SCORE_SIGMOID] = "sigmoid",
                                         [MOERT_SCORE_SOFTMAX_TOPK] = "softmax of top-k"};
    return titled("top %zu of %zu by %s%s x %.9g, groups %zu/%zu", r->topk, r->experts,
                  scores[r->score], r->renormalise ? ", renormalised," : "", (double)r->scale,
                  r->kept_groups, r->groups);
}

static void assert_golden(const struct golden_config *golden, const moert_model_config *config) {
    assert_int_equal(config->family, golden->family);
    assert_string_equal(sizes_of(config), golden->sizes);
    assert_string_equal(router_of(&config->router), golden->router);
    assert_true(config->norm_epsilon == golden->epsilon);
    assert_true(config->initializer_range == 0.02f);
    assert_int_equal(config->router.size, sizeof(moert_router_options));
    assert_int_equal(config->router.group_best, 2);
}

TEST(test_every_golden_config_gives_the_expected_values) {
    for (size_t i = 0; i < GOLDENS; i++) {
        moert_model_config config;
        ASSERT_OK(moert_model_config_read(golden_path(i), &config));
        assert_golden(&goldens[i], &config);
        bool gpt_oss = config.family == MOERT_FAMILY_GPT_OSS;
        const bool olmoe = config.family == MOERT_FAMILY_OLMOE;
        assert_int_equal(config.qk_norm, olmoe || config.family == MOERT_FAMILY_QWEN3_MOE);
        assert_int_equal(config.qk_norm_whole, olmoe);
        assert_int_equal(config.correction_bias, config.family == MOERT_FAMILY_DEEPSEEK_V3);
        assert_int_equal(config.router_bias, gpt_oss);
        assert_int_equal(config.expert_biases, gpt_oss);
        assert_int_equal(config.glu.interleaved, gpt_oss);
        assert_true(gpt_oss ? config.glu.limit == 7.0f : isinf(config.glu.limit));
        assert_int_equal(config.sliding_window, gpt_oss ? 128 : 0);
        assert_false(config.tied_embeddings);
        assert_non_null(strstr(config.text, "\"model_type\""));
        moert_model_config_free(&config);
        assert_null(config.text);
    }
}

TEST(test_whole_models_pass_the_model_check) {
    for (size_t i = 0; i < GOLDENS; i++) {
        const moert_model_config config = read_config(golden_path(i));
        assert_int_equal(moert_model_config_check_model(&config), goldens[i].whole);
    }
}

/* Looks up one expert's three tensors with their shapes; E stands for the shared expert. */
static void assert_expert_tensors(const moert_model_config *config, const moert_tensors *tensors,
                                  size_t expert) {
    size_t H = config->hidden, I = config->intermediate, E = config->router.experts;
    bool fused = moert_experts_are_fused(config);
    for (int part = MOERT_EXPERT_GATE; part <= MOERT_EXPERT_DOWN; part++) {
        char name[MOERT_TENSOR_NAME_BYTES];
        const moert_tensor *tensor;
        bool down = part == MOERT_EXPERT_DOWN;
        size_t separate[] = {down ? H : I, down ? I : H};
        size_t whole[] = {E, down ? I : H, down ? H : 2 * I};
        moert_expert_tensor_name(config, 0, expert == E ? SIZE_MAX : expert,
                                 (moert_expert_part)part, name, sizeof name);
        ASSERT_OK(
            moert_tensors_get(tensors, name, fused ? 3 : 2, fused ? whole : separate, &tensor));
    }
}

TEST(test_every_expert_tensor_of_the_golden_files_has_its_name) {
    for (size_t i = 0; i < GOLDENS; i++) {
        const moert_model_config config = read_config(golden_path(i));
        const moert_tensors *tensors = open_tensors(golden_path(i));
        size_t count = config.router.experts + (config.shared_intermediate > 0 ? 1 : 0);
        for (size_t e = 0; e < count; e++)
            assert_expert_tensors(&config, tensors, e);
    }
}

TEST(test_names_are_those_of_released_checkpoints) {
    static const struct {
        moert_family family;
        size_t expert;
        moert_expert_part part;
        const char *name;
    } rows[] = {
        {MOERT_FAMILY_MIXTRAL, 7, MOERT_EXPERT_UP,
         "model.layers.3.block_sparse_moe.experts.7.w3.weight"},
        {MOERT_FAMILY_MIXTRAL, 0, MOERT_EXPERT_DOWN,
         "model.layers.3.block_sparse_moe.experts.0.w2.weight"},
        {MOERT_FAMILY_QWEN3_MOE, 127, MOERT_EXPERT_GATE,
         "model.layers.3.mlp.experts.127.gate_proj.weight"},
        {MOERT_FAMILY_OLMOE, 5, MOERT_EXPERT_UP, "model.layers.3.mlp.experts.5.up_proj.weight"},
        {MOERT_FAMILY_DEEPSEEK_V3, SIZE_MAX, MOERT_EXPERT_DOWN,
         "model.layers.3.mlp.shared_experts.down_proj.weight"},
        {MOERT_FAMILY_GPT_OSS, 5, MOERT_EXPERT_UP, "model.layers.3.mlp.experts.gate_up_proj"},
        {MOERT_FAMILY_GPT_OSS, 5, MOERT_EXPERT_DOWN, "model.layers.3.mlp.experts.down_proj"},
    };
    char name[MOERT_TENSOR_NAME_BYTES];
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_model_config config = {.family = rows[i].family};
        moert_expert_tensor_name(&config, 3, rows[i].expert, rows[i].part, name, sizeof name);
        assert_string_equal(name, rows[i].name);
    }
    moert_model_config mixtral = {.family = MOERT_FAMILY_MIXTRAL};
    moert_model_config gpt_oss = {.family = MOERT_FAMILY_GPT_OSS};
    moert_moe_tensor_name(&mixtral, 11, "gate.weight", name, sizeof name);
    assert_string_equal(name, "model.layers.11.block_sparse_moe.gate.weight");
    moert_router_tensor_name(&gpt_oss, 11, "bias", name, sizeof name);
    assert_string_equal(name, "model.layers.11.mlp.router.bias");
}

/* ---- writing ---- */

/* Whether a new model may have this config: with the default rotary scheme, and layers by no
 * list. */
static bool is_model(const struct golden_config *golden) {
    return strncmp(golden->path, "model/", 6) == 0;
}

static char *text_of(const moert_model_config *config) {
    char *text;
    ASSERT_OK(moert_model_config_text(config, &text));
    return owned(text, free);
}

TEST(test_a_written_config_reads_back_equal_and_has_fixed_bytes) {
    for (size_t i = 0; i < GOLDENS; i++) {
        if (!is_model(&goldens[i]))
            continue;
        moert_model_config first = read_config(golden_path(i));
        first.aux_coefficient = 0.0123f;
        first.tied_embeddings = true;
        const char *text = text_of(&first);
        write_text("config.json", text);
        const moert_model_config second = read_config(test_directory);
        assert_golden(&goldens[i], &second);
        assert_true(second.aux_coefficient == 0.0123f && second.tied_embeddings);
        assert_int_equal(second.max_positions, first.max_positions);
        assert_string_equal(second.text, text);
        assert_string_equal(text_of(&second), text);
    }
}

/* Checks that every outer key of `from` occurs in `in`. The line of an outer key begins with two
 * blanks and a quote. */
static void assert_keys_within(const char *from, const char *in) {
    for (const char *line = strchr(from, '\n'); line != NULL; line = strchr(line + 1, '\n')) {
        const char *end = strncmp(line, "\n  \"", 4) == 0 ? strchr(line, ':') : NULL;
        char key[80];
        if (end == NULL)
            continue;
        snprintf(key, sizeof key, "%.*s", (int)(end - line) + 1, line);
        if (strstr(key, "transformers_version") == NULL && strstr(in, key) == NULL)
            fail_msg("the key %s is on one side only", key);
    }
}

TEST(test_a_written_config_has_the_keys_that_transformers_writes) {
    for (size_t i = 0; i < GOLDENS; i++) {
        if (!is_model(&goldens[i]))
            continue;
        moert_model_config config = read_config(golden_path(i));
        const char *text = text_of(&config);
        assert_keys_within(text, config.text);
        assert_keys_within(config.text, text);
        config.dense_intermediate = 0; /* transformers wants a number, or no key */
        assert_null(strstr(text_of(&config), "intermediate_size\": null"));
    }
    const moert_model_config other = {.family = MOERT_FAMILY_GPT_OSS};
    char *text;
    assert_int_equal(moert_model_config_text(&other, &text), MOERT_ERROR_FORMAT); /* no heads */
}

TESTS(make_test_directory, remove_test_directory)

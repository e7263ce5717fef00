// run: check=1 all=1san device=0
/* Keys of config.json: defaults, alternative spellings, broken values. */

#include "base/memory.h"
#include "io/durable.h"
#include "io/model_config.h"
#include "support/files.h"

static moert_status read_config(const char *text, moert_model_config *config) {
    write_json("config.json", text);
    const moert_status status = moert_model_config_read(test_directory, config);
    if (status == MOERT_OK)
        owned(config->text, free);
    return status;
}

#define SIZES                                                                                      \
    "'vocab_size':100, 'hidden_size':64, 'num_hidden_layers':2, 'num_attention_heads':4, "         \
    "'intermediate_size':96"
#define MIXTRAL "{'model_type':'mixtral'," SIZES ","
#define EXPERTS "'num_local_experts':8, 'num_experts_per_tok':2"
#define QWEN3   "{'model_type':'qwen3_moe'," SIZES "," EXPERTS ","
#define GPT_OSS "{'model_type':'gpt_oss'," SIZES "," EXPERTS ","
#define DEEPSEEK                                                                                   \
    "{'model_type':'deepseek_v3'," SIZES ", 'n_routed_experts':32, 'num_experts_per_tok':4,"
#define DEEPSEEK2                                                                                  \
    "{'model_type':'deepseek_v2'," SIZES ", 'n_routed_experts':32, 'num_experts_per_tok':4,"

TEST(test_defaults_of_a_family_hold_where_keys_are_absent) {
    moert_model_config config;
    ASSERT_OK(read_config(MIXTRAL EXPERTS "}", &config));
    assert_int_equal(config.kv_heads, 4);
    assert_int_equal(config.head_size, 16);
    assert_int_equal(config.max_positions, 131072);
    assert_true(config.rope.theta == 1e6 && config.norm_epsilon == 1e-5f);
    assert_true(config.router.renormalise);
    ASSERT_OK(read_config(
        QWEN3
        "'moe_intermediate_size':32, 'rope_theta':5e6, 'head_dim':null, 'sliding_window':4096}",
        &config));
    assert_int_equal(config.intermediate, 32);
    assert_true(config.rope.theta == 5e6);
    assert_false(config.router.renormalise);
    assert_int_equal(config.sliding_window, 0); /* use_sliding_window is not set */
    ASSERT_OK(read_config(GPT_OSS "'swiglu_limit':5.5}", &config));
    assert_true(config.glu.limit == 5.5f && config.glu.alpha == 1.702f && config.glu.offset == 1);
}

TEST(test_deepseek_groups_and_shared_experts_follow_their_keys) {
    moert_model_config config;
    ASSERT_OK(read_config(DEEPSEEK "'n_shared_experts':2}", &config));
    assert_int_equal(config.shared_intermediate, 2 * 96);
    assert_int_equal(config.router.groups, 8);
    assert_int_equal(config.router.kept_groups, 4);
    assert_true(config.router.scale == 2.5f && config.router.renormalise);
    ASSERT_OK(read_config(
        DEEPSEEK
        "'n_group':null, 'n_shared_experts':0, 'rope_scaling':{'type':'yarn', 'factor':40}}",
        &config));
    assert_int_equal(config.router.groups, 1);
    assert_int_equal(config.shared_intermediate, 0);
    assert_int_equal(config.rope.type, MOERT_ROPE_YARN);
}

TEST(test_deepseek_v2_judges_groups_by_their_best_expert) {
    moert_model_config config;
    ASSERT_OK(read_config(DEEPSEEK2 "'topk_method':'group_limited_greedy', 'n_group':8, "
                                    "'topk_group':3, 'routed_scaling_factor':16.0}",
                          &config));
    assert_int_equal(config.router.score, MOERT_SCORE_SOFTMAX);
    assert_false(config.router.renormalise || config.correction_bias);
    assert_int_equal(config.router.groups, 8);
    assert_int_equal(config.router.kept_groups, 3);
    assert_int_equal(config.router.group_best, 1);
    assert_int_equal(config.shared_intermediate, 2 * 96);
    assert_int_equal(config.latent.q_rank, 1536);
    assert_true(config.rope.interleaved && config.router.scale == 16.0f);
    ASSERT_OK(read_config(DEEPSEEK2 "'topk_method':'greedy', 'n_group':8, 'topk_group':3, "
                                    "'q_lora_rank':null, 'scoring_func':'softmax'}",
                          &config));
    assert_int_equal(config.router.groups, 1);
    assert_int_equal(config.latent.q_rank, 0);
    /* a group may be a single expert */
    ASSERT_OK(read_config(
        DEEPSEEK2 "'topk_method':'group_limited_greedy', 'n_group':32, 'topk_group':4}", &config));
}

TEST(test_layers_of_multi_token_prediction_are_counted_and_not_saved) {
    moert_model_config config, again;
    ASSERT_OK(read_config(DEEPSEEK "'num_nextn_predict_layers':1}", &config));
    assert_int_equal(config.prediction_layers, 1);
    assert_non_null(strstr(config.text, "\"num_nextn_predict_layers\": 0"));
    ASSERT_OK(read_config(config.text, &again));
    assert_int_equal(again.prediction_layers, 0);
}

#define QUANTIZED(config, words) config "'quantization_config':" words "}"
#define FP8(size)                "{'quant_method':'fp8','fmt':'e4m3','weight_block_size':" size "}"
#define MXFP4                    "{'quant_method':'mxfp4'}"

TEST(test_a_config_names_the_method_and_keeps_a_text_for_plain_weights) {
    moert_model_config config, again;
    ASSERT_OK(read_config(QUANTIZED(QWEN3 "'rms_norm_eps':1e-06,", FP8("[128,128]")), &config));
    assert_string_equal(config.quant_method, "fp8");
    assert_null(strstr(config.text, "quantization_config"));
    assert_non_null(strstr(config.text, "\"rms_norm_eps\": 1e-6"));
    ASSERT_OK(read_config(config.text, &again));
    assert_null(again.quant_method);
    assert_true(again.norm_epsilon == config.norm_epsilon);
    assert_int_equal(again.intermediate, config.intermediate);
    ASSERT_OK(read_config(QUANTIZED(GPT_OSS, MXFP4), &config));
    assert_string_equal(config.quant_method, "mxfp4");
    ASSERT_OK(read_config(QUANTIZED(QWEN3, "null"), &config));
    assert_null(config.quant_method);
}

#define FORMAT      MOERT_ERROR_FORMAT
#define UNSUPPORTED MOERT_ERROR_UNSUPPORTED

typedef struct refused_config {
    const char *text;
    moert_status status;
    const char *part; /* expected in the message */
} refused_config;

static const refused_config broken[] = {
    {"", FORMAT, "JSON"},
    {"[]", FORMAT, "object"},
    {MIXTRAL EXPERTS, FORMAT, "JSON"},
    {"{'model_type':'mixtral', 'model_type':'olmoe'}", FORMAT, "JSON"},
    {"{" SIZES "}", FORMAT, "model_type"},
    {"{'model_type':3}", FORMAT, "model_type"},
    {"{'model_type':'llama'}", UNSUPPORTED, "llama"},
    {MIXTRAL "'num_experts_per_tok':2}", FORMAT, "key num_local_experts"},
    {MIXTRAL "'num_experts':8}", FORMAT, "key num_experts_per_tok"},
    {MIXTRAL "'num_experts':8, 'num_experts_per_tok':9}", FORMAT,
     "num_experts_per_tok is 9, above the number of experts 8"},
    {MIXTRAL EXPERTS ", 'num_experts':16}", FORMAT, "num_experts"},
    {MIXTRAL EXPERTS ", 'head_dim':0}", FORMAT, "head_dim is 0"},
    {MIXTRAL EXPERTS ", 'head_dim':-4}", FORMAT, "head_dim is -4"},
    {MIXTRAL EXPERTS ", 'head_dim':2147483648}", FORMAT, "2147483647"},
    {MIXTRAL EXPERTS ", 'head_dim':99999999999999999999}", FORMAT, "JSON"},
    {MIXTRAL EXPERTS ", 'head_dim':16.0}", FORMAT, "integer"},
    {MIXTRAL EXPERTS ", 'head_dim':'16'}", FORMAT, "integer"},
    {MIXTRAL EXPERTS ", 'rms_norm_eps':0}", FORMAT, "rms_norm_eps"},
    {MIXTRAL EXPERTS ", 'rms_norm_eps':1e300}", FORMAT, "rms_norm_eps"},
    {MIXTRAL EXPERTS ", 'rms_norm_eps':true}", FORMAT, "rms_norm_eps"},
    {MIXTRAL EXPERTS ", 'tie_word_embeddings':1}", FORMAT, "tie_word"},
    {MIXTRAL EXPERTS ", 'hidden_act':'gelu'}", UNSUPPORTED, "gelu"},
    {MIXTRAL EXPERTS ", 'rope_parameters':7}", FORMAT, "rope_parameters"},
    {MIXTRAL EXPERTS ", 'rope_scaling':{'type':7}}", FORMAT, "rope_type"},
    {QWEN3 "'mlp_only_layers':0}", FORMAT, "mlp_only_layers"},
    {QWEN3 "'norm_topk_prob':'yes'}", FORMAT, "norm_topk_prob"},
    {"{'model_type':'deepseek_v3'," SIZES ", 'n_routed_experts':32, 'num_experts_per_tok':1}",
     UNSUPPORTED, "every weight would be 1"},
    {DEEPSEEK "'n_group':5}", FORMAT, "n_group is 5"},
    {DEEPSEEK "'n_group':4, 'topk_group':5}", FORMAT, "topk_group is 5"},
    {DEEPSEEK "'n_group':32}", FORMAT, "n_group is 32"},
    {DEEPSEEK "'n_group':16, 'topk_group':1}", FORMAT, "topk_group 1"},
    {DEEPSEEK "'n_shared_experts':2147483647}", FORMAT, "n_shared_experts"},
    {DEEPSEEK "'scoring_func':'softmax'}", UNSUPPORTED, "scoring_func"},
    {DEEPSEEK2 "'scoring_func':'sigmoid'}", UNSUPPORTED, "scoring_func"},
    {DEEPSEEK2 "'topk_method':'noaux_tc'}", UNSUPPORTED,
     "topk_method is 'noaux_tc'; supported are greedy and group_limited_greedy"},
    {DEEPSEEK2 "'norm_topk_prob':true}", UNSUPPORTED, "norm_topk_prob has a value other than 0"},
    {DEEPSEEK2 "'rope_interleave':true}", UNSUPPORTED, "rope_interleave"},
    {QUANTIZED(QWEN3, "{'quant_method':'awq'}"), UNSUPPORTED,
     "'awq'; supported are fp8 (e4m3 in blocks of 128x128) and, for gpt_oss, mxfp4: here fp8"},
    {QUANTIZED(QWEN3, MXFP4), UNSUPPORTED, "'mxfp4'; supported are fp8"},
    {QUANTIZED(GPT_OSS, FP8("[128,128]")), UNSUPPORTED, "mxfp4: here mxfp4"},
    {QUANTIZED(GPT_OSS, "{}"), UNSUPPORTED, "'(not a string)'"},
    {QUANTIZED(GPT_OSS, "7"), UNSUPPORTED, "'(not a string)'"},
    {QUANTIZED(QWEN3, "{'quant_method':'fp8', 'fmt':'e5m2'}"), UNSUPPORTED, "fmt is 'e5m2'"},
    {QUANTIZED(QWEN3, "{'quant_method':'fp8'}"), UNSUPPORTED, "weight_block_size"},
    {QUANTIZED(QWEN3, FP8("[128]")), UNSUPPORTED, "is not [128, 128]"},
    {QUANTIZED(QWEN3, FP8("[64,128]")), UNSUPPORTED, "is not [128, 128]"},
    {QUANTIZED(QWEN3, FP8("[128,128.5]")), UNSUPPORTED, "is not [128, 128]"},
};

TEST(test_broken_configs_are_refused_with_key_and_file) {
    moert_model_config config;
    for (size_t i = 0; i < MOERT_COUNT(broken); i++) {
        memset(&config, 0x5a, sizeof config);
        ASSERT_FAILS(read_config(broken[i].text, &config), broken[i].status, broken[i].part);
        assert_non_null(strstr(moert_last_error(), in_directory("config.json")));
        /* a failure leaves the output unchanged */
        assert_int_equal(config.hidden, (size_t)0x5a5a5a5a5a5a5a5a);
    }
    ASSERT_FAILS(moert_model_config_read("/tmp/absent-moert.json", &config), MOERT_ERROR_IO,
                 "/tmp/absent-moert.json");
}

#define SIZED(hidden, layers)                                                                      \
    "{'model_type':'mixtral', 'vocab_size':9, 'hidden_size':" hidden                               \
    ", 'num_hidden_layers':" layers ", 'num_attention_heads':4, 'intermediate_size':8," EXPERTS    \
    "}"

static const refused_config not_models[] = {
    {GPT_OSS "'head_dim':7}", FORMAT, "7 elements of a head of 7 rotate"},
    {DEEPSEEK "'v_head_dim':600}", FORMAT, "v_head_dim is 600"},
    {QWEN3 "'head_dim':15}", FORMAT, "15"},
    {QWEN3 "'num_key_value_heads':3}", FORMAT, "num_key_value_heads is 3"},
    {MIXTRAL EXPERTS ", 'rope_scaling':{'type':'linear', 'factor':0}}", FORMAT, "factor"},
    {SIZED("65", "1"), FORMAT, "hidden_size 65"},
    {SIZED("64", "1025"), UNSUPPORTED, "1025, above 1024"},
};

TEST(test_the_model_check_refuses_unsupported_settings) {
    for (size_t i = 0; i < MOERT_COUNT(not_models); i++) {
        moert_model_config config;
        ASSERT_OK(read_config(not_models[i].text, &config));
        ASSERT_FAILS(moert_model_config_check_model(&config), not_models[i].status,
                     not_models[i].part);
    }
}

/* ---- the three tables of keys ---- */

static const refused_config unknown[] = {
    {MIXTRAL EXPERTS ", 'frobnicate':1}", UNSUPPORTED, "the key frobnicate of a mixtral config"},
    {MIXTRAL EXPERTS ", 'clip_qkv':0.5}", UNSUPPORTED, "clip_qkv"},
    {MIXTRAL EXPERTS ", 'mlp_only_layers':[]}", UNSUPPORTED, "mlp_only_layers"},
    {QWEN3 "'layer_types':[]}", UNSUPPORTED, "layer_types"},
    {MIXTRAL EXPERTS ", 'attention_dropout':0.1}", UNSUPPORTED,
     "attention_dropout has a value other than 0"},
    {MIXTRAL EXPERTS ", 'router_jitter_noise':1e-3}", UNSUPPORTED, "router_jitter_noise"},
    {MIXTRAL EXPERTS ", 'attention_dropout':'0'}", UNSUPPORTED, "attention_dropout"},
    {DEEPSEEK "'moe_layer_freq':2}", UNSUPPORTED, "moe_layer_freq"},
    {DEEPSEEK "'is_encoder_decoder':true}", UNSUPPORTED, "is_encoder_decoder"},
    {MIXTRAL EXPERTS ", 'rope_scaling':{'type':'longrope'}}", UNSUPPORTED,
     "'longrope'; supported are default, linear, yarn and llama3"},
    {MIXTRAL EXPERTS ", 'rope_parameters':{'rope_type':'dynamic', 'factor':2}}", UNSUPPORTED,
     "'dynamic'"},
    {MIXTRAL EXPERTS ", 'rope_parameters':{'long_factor':[1]}}", UNSUPPORTED,
     "long_factor of rope_parameters"},
    {MIXTRAL EXPERTS ", 'rope_scaling':{'type':'linear'}}", FORMAT,
     "the key factor of rope_scaling is missing"},
    {MIXTRAL EXPERTS ", 'rope_scaling':{'type':'llama3', 'factor':8}}", FORMAT, "low_freq_factor"},
    {GPT_OSS "'layer_types':['full_attention']}", FORMAT, "a list of 2 layers"},
    {GPT_OSS "'layer_types':['full_attention', 'chunked_attention']}", UNSUPPORTED,
     "layer 1 is 'chunked_attention'"},
    {QWEN3 "'mlp_only_layers':[2]}", FORMAT, "layer 2 of 2 layers"},
    {QWEN3 "'mlp_only_layers':['0']}", FORMAT, "mlp_only_layers"},
};

TEST(test_unknown_keys_and_values_that_are_not_neutral_are_refused_by_name) {
    moert_model_config config;
    for (size_t i = 0; i < MOERT_COUNT(unknown); i++)
        ASSERT_FAILS(read_config(unknown[i].text, &config), unknown[i].status, unknown[i].part);
}

TEST(test_harmless_keys_neutral_values_and_nulls_are_accepted) {
    moert_model_config config;
    ASSERT_OK(read_config(
        MIXTRAL EXPERTS ", 'use_cache':false, 'torch_dtype':'bfloat16', 'attention_dropout':0, "
                        "'router_jitter_noise':0.0, 'is_encoder_decoder':false, 'frobnicate':null}",
        &config));
    ASSERT_OK(read_config(
        DEEPSEEK
        "'moe_layer_freq':1, 'num_nextn_predict_layers':1, 'scoring_func':'sigmoid', 'ep_size':1}",
        &config));
}

/* Layers of a set as digits, such as "02". */
static const char *layers_of(const moert_layer_set *set) {
    static char text[9];
    size_t length = 0;
    for (size_t l = 0; l < 8; l++)
        if (moert_layer_set_has(set, l))
            text[length++] = (char)('0' + l);
    text[length] = '\0';
    return text;
}

#define FOUR(type)                                                                                 \
    "{'model_type':'" type "', 'vocab_size':100, 'hidden_size':64, 'num_hidden_layers':4, "        \
    "'num_attention_heads':4, 'intermediate_size':96," EXPERTS ","

TEST(test_windows_and_dense_layers_follow_the_rules_of_their_family) {
    static const struct {
        const char *text, *windowed, *dense;
        size_t window;
    } rows[] = {
        {FOUR("mixtral") "'sliding_window':5}", "0123", "", 5},
        {FOUR("mixtral") "'sliding_window':null}", "", "", 0},
        {FOUR("qwen3_moe") "'sliding_window':5}", "", "", 0},
        {FOUR("qwen3_moe") "'sliding_window':5, 'use_sliding_window':true}", "0123", "", 5},
        {FOUR("qwen3_moe") "'mlp_only_layers':[1,3]}", "", "13", 0},
        {FOUR("qwen3_moe") "'decoder_sparse_step':2, 'mlp_only_layers':[1]}", "", "012", 0},
        {FOUR("qwen3_moe") "'decoder_sparse_step':3}", "", "013", 0},
        {FOUR("qwen2_moe") "'use_sliding_window':true}", "02", "", 4096},
        {FOUR("qwen2_moe") "'use_sliding_window':true, 'max_window_layers':2}", "0", "", 4096},
        {FOUR("qwen2_moe") "'sliding_window':0}", "", "", 0},
        {FOUR("gpt_oss") "'rms_norm_eps':1e-5}", "02", "", 128},
        {FOUR("gpt_oss") "'layer_types':['full_attention', 'sliding_attention', "
                         "'sliding_attention', 'full_attention']}",
         "12", "", 128},
        {FOUR("glm4_moe") "'first_k_dense_replace':2}", "", "01", 0},
        {FOUR("glm4_moe") "'moe_intermediate_size':8}", "", "0", 0},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        moert_model_config config;
        ASSERT_OK(read_config(rows[i].text, &config));
        assert_string_equal(layers_of(&config.windowed), rows[i].windowed);
        assert_string_equal(layers_of(&config.dense_layers), rows[i].dense);
        assert_int_equal(config.sliding_window, rows[i].window);
    }
}

TEST(test_rotary_schemes_are_read_in_both_spellings) {
    moert_model_config config;
    ASSERT_OK(read_config(
        MIXTRAL EXPERTS
        ", 'max_position_embeddings':256, 'rope_parameters':{'rope_type':'yarn', 'rope_theta':100, "
        "'factor':null, 'truncate':false, 'original_max_position_embeddings':64, 'beta_fast':4}}",
        &config));
    assert_true(config.rope.type == MOERT_ROPE_YARN && config.rope.theta == 100.0);
    assert_true(config.rope.factor == 4.0 && config.rope.original == 64 && !config.rope.truncate);
    assert_true(config.rope.beta_fast == 4.0 && config.rope.beta_slow == 0.0);
    assert_int_equal(config.rope.width, 16);
    ASSERT_OK(read_config(MIXTRAL EXPERTS
                          ", 'rope_theta':7, 'rope_scaling':{'type':'linear', 'factor':2.5}}",
                          &config));
    assert_true(config.rope.type == MOERT_ROPE_LINEAR && config.rope.theta == 7.0);
    assert_true(config.rope.factor == 2.5);
    ASSERT_OK(read_config(GPT_OSS "'rms_norm_eps':1e-5}", &config));
    assert_true(config.rope.type == MOERT_ROPE_YARN && config.rope.factor == 32.0);
    ASSERT_OK(read_config("{'model_type':'glm4_moe'," SIZES "," EXPERTS "}", &config));
    assert_int_equal(config.rope.width, 8);
}

TESTS(make_test_directory, remove_test_directory)

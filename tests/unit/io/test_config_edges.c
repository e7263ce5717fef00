// run: check=1 device=0
/* Keys of released config.json files that are unusual for the model's family, and keys that
 * contradict each other. */
#include "io/model_config.h"
#include "support/files.h"

#define SIZES                                                                                      \
    "'vocab_size':100, 'hidden_size':64, 'num_hidden_layers':2, 'num_attention_heads':4, "         \
    "'intermediate_size':96, 'num_experts_per_tok':2"
#define QWEN3   "{'model_type':'qwen3_moe', 'num_experts':8," SIZES
#define MIXTRAL "{'model_type':'mixtral', 'num_local_experts':8," SIZES
#define OLMOE   "{'model_type':'olmoe', 'num_experts':8," SIZES
#define CODER                                                                                      \
    ", 'qkv_bias':false, 'use_qk_norm':true, 'shared_expert_intermediate_size':0, "                \
    "'transformers.js_config':{'dtype':'q4'}, 'layer_types':['full_attention', 'full_attention']"

static moert_status read_config(const char *text, moert_model_config *config) {
    write_json("config.json", text);
    const moert_status status = moert_model_config_read(test_directory, config);
    if (status == MOERT_OK)
        owned(config->text, free);
    return status;
}

TEST(test_keys_that_say_what_the_family_has_anyway_are_read) {
    moert_model_config config;
    ASSERT_OK(read_config(QWEN3 CODER "}", &config));
    assert_true(config.qk_norm && !config.attention_bias && config.shared_intermediate == 0);
    ASSERT_OK(read_config(MIXTRAL ", 'sliding_window':4, 'layer_types':['sliding_attention', "
                                  "'sliding_attention']}",
                          &config));
    assert_int_equal(config.sliding_window, 4);
}

TEST(test_special_tokens_are_read) {
    static const struct {
        const char *text;
        int32_t end, pad;
    } rows[] = {
        {QWEN3 "}", -1, -1},
        {OLMOE "}", -1, 1}, /* without pad_token_id, transformers uses token 1 for OLMoE */
        {OLMOE ", 'pad_token_id':null}", -1, -1},
        {QWEN3 ", 'eos_token_id':[7, 9], 'pad_token_id':0}", 7, 0},
        {QWEN3 ", 'eos_token_id':0}", 0, -1},
        {QWEN3 ", 'eos_token_id':100, 'pad_token_id':-1}", -1, 99},
    };
    moert_model_config config;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        ASSERT_OK(read_config(rows[i].text, &config));
        assert_int_equal(config.end_token, rows[i].end);
        assert_int_equal(config.pad_token, rows[i].pad);
    }
}

#define PLAIN "'rope_parameters':{'rope_type':'default', 'rope_theta':5000.0}"
#define YARN  "'rope_scaling':{'type':'yarn', 'factor':4.0}"

TEST(test_rotary_schemes_that_agree_may_be_given_twice) {
    moert_model_config config;
    ASSERT_OK(read_config(QWEN3 "," PLAIN ", 'rope_scaling':{'type':'default'}}", &config));
    assert_true(config.rope.theta == 5000.0);
}

TEST(test_keys_that_contradict_are_refused_with_both) {
    static const struct {
        const char *text, *message;
    } rows[] = {
        {MIXTRAL ", 'use_qk_norm':true}", "does not know the key use_qk_norm"},
        {QWEN3 ", 'use_qk_norm':false}", "use_qk_norm has a value other than 1"},
        {QWEN3 ", 'shared_expert_intermediate_size':64}", "has a value other than 0"},
        {QWEN3 ", 'layer_types':['full_attention', 'sliding_attention']}",
         "layer_types of layer 1 is sliding_attention, but sliding_window is 0"},
        {MIXTRAL ", 'sliding_window':4, 'layer_types':['sliding_attention', 'full_attention']}",
         "layer_types of layer 1 is full_attention, but sliding_window is 4"},
        {QWEN3 "," PLAIN "," YARN "}",
         "rope_parameters is {\"rope_type\":\"default\",\"rope_theta\":5000.0}, but rope_scaling "
         "is "
         "{\"type\":\"yarn\",\"factor\":4.0}; remove one"},
        {QWEN3 ", 'rope_theta':10000.0," PLAIN "}",
         "rope_theta is 10000, but 5000 in rope_parameters"},
        {QWEN3 ", 'pad_token_id':100}", "pad_token_id is no token of the vocabulary of 100"},
        {QWEN3 ", 'pad_token_id':'x'}", "pad_token_id is no token"},
        {QWEN3 ", 'eos_token_id':'x'}", "eos_token_id must be a token's number"},
        {QWEN3 ", 'eos_token_id':[1, 'x']}", "eos_token_id must be a token's number"},
    };
    moert_model_config config;
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const moert_status status = read_config(rows[i].text, &config);
        assert_true(status == MOERT_ERROR_FORMAT || status == MOERT_ERROR_UNSUPPORTED);
        if (strstr(moert_last_error(), rows[i].message) == NULL)
            fail_msg("'%s' does not contain '%s'", moert_last_error(), rows[i].message);
    }
}

TESTS(make_test_directory, remove_test_directory)

// run: check=1 all=1san device=0
/* config.json files of every family are read, refused and written: the golden files, and texts with
 * single keys. */
#include "io/durable.h"
#include "io/families.h"
#include "io/model_config.h"
#include "support/files.h"

/* ---- configs in words ---- */

/* The first eight layers of a set as digits, such as "02"; "-" if there is none. */
static const char *layers_of(const moert_layer_set *set) {
    const char *text = "";
    for (size_t l = 0; l < 8; l++)
        if (moert_layer_set_has(set, l))
            text = titled("%s%zu", text, l);
    return text[0] != '\0' ? text : "-";
}

/* Returns all values of a config as words "name=value", separated by blanks. */
static const char *describe(const moert_model_config *c) {
    static const char *const scores[] = {[MOERT_SCORE_SOFTMAX] = "softmax",
                                         [MOERT_SCORE_SIGMOID] = "sigmoid",
                                         [MOERT_SCORE_SOFTMAX_TOPK] = "softmax-topk"};
    static const char *const schemes[] = {[MOERT_ROPE_DEFAULT] = "default",
                                          [MOERT_ROPE_LINEAR] = "linear",
                                          [MOERT_ROPE_YARN] = "yarn",
                                          [MOERT_ROPE_LLAMA3] = "llama3"};
    const moert_router_options *r = &c->router;
    const moert_rope_scheme *rope = &c->rope;
    const char *sizes = titled(
        "family=%s V=%zu H=%zu L=%zu heads=%zu/%zu head=%zu I=%zu shared=%zu positions=%zu "
        "q_rank=%zu windowed=%s window=%zu dense=%s prediction=%zu eps=%.9g init=%.9g aux=%.9g",
        moert_family_of(c->family)->model_type, c->vocabulary, c->hidden, c->layers, c->heads,
        c->kv_heads, c->head_size, c->intermediate, c->shared_intermediate, c->max_positions,
        c->latent.q_rank, layers_of(&c->windowed), c->sliding_window, layers_of(&c->dense_layers),
        c->prediction_layers, (double)c->norm_epsilon, (double)c->initializer_range,
        (double)c->aux_coefficient);
    const char *router = titled(
        "top=%zu/%zu score=%s renormalise=%d scale=%.9g groups=%zu/%zu best=%zu correction=%d",
        r->topk, r->experts, scores[r->score], r->renormalise, (double)r->scale, r->kept_groups,
        r->groups, r->group_best, c->correction_bias);
    const char *rotary =
        titled("rope=%s interleaved=%d width=%zu theta=%.17g factor=%g original=%zu betas=%g/%g "
               "truncate=%d",
               schemes[rope->type], rope->interleaved, rope->width, rope->theta, rope->factor,
               rope->original, rope->beta_fast, rope->beta_slow, rope->truncate);
    return titled(" %s %s %s tied=%d qk_norm=%d/%d biases=%d/%d glu=%d/%g/%.9g/%g quant=%s ", sizes,
                  router, rotary, c->tied_embeddings, c->qk_norm, c->qk_norm_whole, c->router_bias,
                  c->expert_biases, c->glu.interleaved, (double)c->glu.limit, (double)c->glu.alpha,
                  (double)c->glu.offset, c->quant_method != NULL ? c->quant_method : "-");
}

/* Checks that the description of a config has each word of a list. */
static void assert_words(const moert_model_config *config, const char *list) {
    const char *all = describe(config);
    char *rest, *words = owned(strdup(list), free);
    for (char *word = strtok_r(words, " ", &rest); word != NULL; word = strtok_r(NULL, " ", &rest))
        if (strstr(all, titled(" %s ", word)) == NULL)
            fail_msg("no %s in%s", word, all);
}

static moert_status read_config(const char *path, moert_model_config *config) {
    const moert_status status = moert_model_config_read(path, config);
    if (status == MOERT_OK)
        owned(config->text, free);
    return status;
}

/* Reads a config.json of this text, in which ' stands for ". */
static moert_status read_text(const char *text, moert_model_config *config) {
    write_json("config.json", text);
    return read_config(test_directory, config);
}

static char *text_of(const moert_model_config *config) {
    char *text;
    ASSERT_OK(moert_model_config_text(config, &text));
    return owned(text, free);
}

/* ---- golden configs ---- */

/* Descriptions of one golden layer per family and of all golden models. Other golden layers differ
 * in size only. golden_layer and golden_model compute with all golden files, and find each tensor
 * by its name. */
#define DEFAULTS  "init=0.0199999996 tied=0 best=2 "
#define UNGROUPED DEFAULTS "groups=1/1 scale=1 correction=0 shared=0 "
#define PLAIN     "biases=0/0 glu=0/inf/1/0 window=0 score=softmax "
#define IS_MIXTRAL                                                                                 \
    UNGROUPED PLAIN "family=mixtral theta=1000000 eps=9.99999975e-06 top=2/8 renormalise=1 "       \
                    "qk_norm=0/0"
#define IS_QWEN3                                                                                   \
    UNGROUPED PLAIN "family=qwen3_moe theta=10000 eps=9.99999997e-07 renormalise=1 qk_norm=1/0"

static const struct {
    const char *path, *sizes, *family;
} goldens[] = {
    {"layer/mixtral-a", "V=32000 H=64 L=32 heads=4/2 head=16 I=96", IS_MIXTRAL},
    {"layer/qwen3_moe-skew", "V=151936 H=32 L=24 heads=32/4 head=1 I=64 top=2/8", IS_QWEN3},
    {"layer/olmoe-a", "V=50304 H=64 L=16 heads=16/16 head=4 I=96 theta=10000",
     UNGROUPED PLAIN "family=olmoe eps=9.99999975e-06 top=2/8 renormalise=0 qk_norm=1/1"},
    {"layer/deepseek_v3-a", "V=129280 H=64 L=61 heads=128/128 head=64 I=96 shared=96 theta=10000",
     DEFAULTS "family=deepseek_v3 eps=9.99999997e-07 top=2/8 score=sigmoid renormalise=1 "
              "qk_norm=0/0 groups=2/4 scale=2.5 correction=1 biases=0/0 glu=0/inf/1/0 window=0"},
    {"layer/gpt_oss-a", "V=201088 H=64 L=36 heads=64/8 head=64 I=96 theta=150000",
     UNGROUPED "family=gpt_oss eps=9.99999975e-06 top=2/8 score=softmax-topk renormalise=0 "
               "qk_norm=0/0 biases=1/1 glu=1/7/1.70200002/1 window=128"},
    {"model/mixtral-tiny", "V=256 H=64 L=2 heads=4/2 head=16 I=96", IS_MIXTRAL},
    {"model/mixtral-tiny-aux", "V=256 H=64 L=2 heads=4/2 head=16 I=96", IS_MIXTRAL},
    {"model/qwen3-tiny", "V=256 H=64 L=2 heads=4/2 head=32 I=64 top=4/16", IS_QWEN3},
};

enum { GOLDENS = MOERT_COUNT(goldens), MODELS = 5 }; /* the first model */

static const char *golden_path(size_t index) {
    return titled("tests/golden/%s", goldens[index].path);
}

TEST(test_every_golden_config_gives_the_expected_values) {
    for (size_t i = 0; i < GOLDENS; i++) {
        moert_model_config config;
        ASSERT_OK(moert_model_config_read(golden_path(i), &config));
        assert_words(&config, goldens[i].sizes);
        assert_words(&config, goldens[i].family);
        assert_int_equal(config.router.size, sizeof(moert_router_options));
        assert_non_null(strstr(config.text, "\"model_type\""));
        /* heads of one element are refused */
        assert_int_equal(moert_model_config_check_model(&config),
                         config.head_size > 1 ? MOERT_OK : MOERT_ERROR_FORMAT);
        moert_model_config_free(&config);
        assert_null(config.text);
    }
}

/* ---- writing ---- */

TEST(test_a_written_config_reads_back_equal_and_has_fixed_bytes) {
    for (size_t i = MODELS; i < GOLDENS; i++) {
        moert_model_config first, second;
        ASSERT_OK(read_config(golden_path(i), &first));
        first.aux_coefficient = 0.5f;
        first.tied_embeddings = true;
        const char *text = text_of(&first);
        ASSERT_OK(read_text(text, &second));
        assert_string_equal(describe(&second), describe(&first));
        assert_words(&second, "tied=1 aux=0.5");
        assert_string_equal(second.text, text);
        assert_string_equal(text_of(&second), text);
    }
}

TEST(test_every_family_is_written_and_reads_back_equal) {
    for (moert_family i = 0; i < moert_families; i++) {
        moert_model_config first, second;
        moert_model_config_start(&first, i);
        first.vocabulary = 100;
        first.hidden = 64;
        first.layers = first.heads = 4;
        first.kv_heads = first.latent.kv_rank > 0 ? 4 : 2;
        first.head_size = 16;
        first.rope.width = first.latent.kv_rank > 0 ? first.latent.rope : 8;
        first.intermediate = first.dense_intermediate = 32;
        first.router.experts = 32;
        first.router.topk = 4;
        for (size_t l = 0; l < first.first_dense; l++)
            moert_layer_set_add(&first.dense_layers, l);
        const char *text = text_of(&first);
        ASSERT_OK(read_text(text, &second));
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
    for (size_t i = MODELS; i < GOLDENS; i++) {
        moert_model_config config;
        ASSERT_OK(read_config(golden_path(i), &config));
        const char *text = text_of(&config);
        assert_keys_within(text, config.text);
        assert_keys_within(config.text, text);
        /* transformers requires that the key has a number or is absent */
        config.dense_intermediate = 0;
        assert_null(strstr(text_of(&config), "intermediate_size\": null"));
    }
    const moert_model_config other = {.family = moert_family_find("gpt_oss")};
    char *text;
    assert_int_equal(moert_model_config_text(&other, &text), MOERT_ERROR_FORMAT); /* no heads */
}

/* ---- keys, one by one ---- */

#define CONFIG(type, hidden, layers)                                                               \
    "{'model_type':'" type "', 'vocab_size':100, 'hidden_size':" hidden                            \
    ", 'num_hidden_layers':" layers ", 'num_attention_heads':4, 'intermediate_size':96,"
#define EXPERTS    "'num_local_experts':8, 'num_experts_per_tok':2,"
#define ROUTED     "'num_key_value_heads':4, 'n_routed_experts':32, 'num_experts_per_tok':4,"
#define TWO(type)  CONFIG(type, "64", "2")
#define FOUR(type) CONFIG(type, "64", "4") EXPERTS
#define MIXTRAL    TWO("mixtral") EXPERTS
#define QWEN3      TWO("qwen3_moe") EXPERTS
#define GPT_OSS    TWO("gpt_oss") EXPERTS
#define DEEPSEEK   TWO("deepseek_v3") ROUTED
#define DEEPSEEK2  TWO("deepseek_v2") ROUTED

#define QUANTIZED(config, words) config "'quantization_config':" words "}"
#define FP8(size)                "{'quant_method':'fp8','fmt':'e4m3','weight_block_size':" size "}"
#define MXFP4                    "{'quant_method':'mxfp4'}"

/* Each config has defaults where keys are absent or null. */
static const struct {
    const char *text, *words;
} read[] = {
    {MIXTRAL "'hidden_act':'silu'}",
     "positions=131072 theta=1000000 eps=9.99999975e-06 init=0.0199999996 aux=0.00100000005"},
    {QWEN3 "'moe_intermediate_size':32}",
     "positions=32768 theta=10000 eps=9.99999997e-07 aux=0.00100000005 rope=default"},
    {TWO("olmoe") EXPERTS "'hidden_act':'silu'}",
     "positions=4096 theta=10000 eps=9.99999975e-06 aux=0.00999999978 renormalise=0"},
    {TWO("qwen2_moe") "'num_experts':8, 'num_experts_per_tok':2, 'moe_intermediate_size':32}",
     "positions=32768 theta=10000 eps=9.99999997e-07 aux=0.00100000005 renormalise=0 shared=5632 "
     "window=0 rope=default"},
    {TWO("glm4_moe") ROUTED "'moe_intermediate_size':32}",
     "positions=131072 theta=10000 eps=9.99999975e-06 renormalise=1 scale=1 groups=1/1 shared=32 "
     "correction=1 aux=0 rope=default"},
    {DEEPSEEK "'moe_intermediate_size':32}",
     "positions=4096 theta=10000 eps=9.99999997e-07 scale=2.5 groups=4/8 shared=32 aux=0"},
    {DEEPSEEK2 "'moe_intermediate_size':32}",
     "positions=2048 theta=10000 eps=9.99999997e-07 scale=1 groups=1/1 shared=64 aux=0"},
    {GPT_OSS "'torch_dtype':'bfloat16'}",
     "positions=131072 theta=150000 eps=9.99999975e-06 aux=0.00100000005 window=128 rope=yarn "
     "factor=32 original=4096 truncate=0"},
    {MIXTRAL "'head_dim':null}",
     "heads=4/4 head=16 positions=131072 theta=1000000 eps=9.99999975e-06 renormalise=1"},
    /* use_sliding_window is absent, so there is no window */
    {QWEN3 "'moe_intermediate_size':32, 'rope_theta':5e6, 'sliding_window':4096}",
     "I=32 theta=5000000 renormalise=0 window=0"},
    {GPT_OSS "'swiglu_limit':5.5}", "glu=1/5.5/1.70200002/1"},
    {DEEPSEEK "'n_shared_experts':2}", "shared=192 groups=4/8 scale=2.5 renormalise=1"},
    {DEEPSEEK "'n_group':null, 'n_shared_experts':0, 'rope_scaling':{'type':'yarn', 'factor':40}}",
     "groups=1/1 shared=0 rope=yarn"},
    {DEEPSEEK2 "'topk_method':'group_limited_greedy', 'n_group':8, 'topk_group':3, "
               "'routed_scaling_factor':16.0}",
     "score=softmax renormalise=0 correction=0 groups=3/8 best=1 shared=192 q_rank=1536 "
     "interleaved=1 scale=16"},
    {DEEPSEEK2 "'topk_method':'greedy', 'n_group':8, 'topk_group':3, 'q_lora_rank':null, "
               "'scoring_func':'softmax'}",
     "groups=1/1 q_rank=0"},
    /* a group may be a single expert */
    {DEEPSEEK2 "'topk_method':'group_limited_greedy', 'n_group':32, 'topk_group':4}",
     "groups=4/32"},
    {QUANTIZED(GPT_OSS, MXFP4), "quant=mxfp4"},
    {QUANTIZED(QWEN3, "null"), "quant=-"},
    /* harmless keys, neutral values and nulls */
    {MIXTRAL "'use_cache':false, 'torch_dtype':'bfloat16', 'attention_dropout':0, "
             "'router_jitter_noise':0.0, 'is_encoder_decoder':false, 'frobnicate':null}",
     ""},
    {DEEPSEEK "'moe_layer_freq':1, 'num_nextn_predict_layers':1, 'scoring_func':'sigmoid', "
              "'ep_size':1}",
     "prediction=1"},
    /* windows and dense layers by the rules of each family */
    {FOUR("mixtral") "'sliding_window':5}", "windowed=0123 dense=- window=5"},
    {FOUR("mixtral") "'sliding_window':null}", "windowed=- dense=- window=0"},
    {FOUR("qwen3_moe") "'sliding_window':5}", "windowed=- dense=- window=0"},
    {FOUR("qwen3_moe") "'sliding_window':5, 'use_sliding_window':true}",
     "windowed=0123 dense=- window=5"},
    {FOUR("qwen3_moe") "'mlp_only_layers':[1,3]}", "windowed=- dense=13 window=0"},
    {FOUR("qwen3_moe") "'decoder_sparse_step':2, 'mlp_only_layers':[1]}",
     "windowed=- dense=012 window=0"},
    {FOUR("qwen3_moe") "'decoder_sparse_step':3}", "windowed=- dense=013 window=0"},
    {FOUR("qwen2_moe") "'use_sliding_window':true}", "windowed=02 dense=- window=4096"},
    {FOUR("qwen2_moe") "'use_sliding_window':true, 'max_window_layers':2}",
     "windowed=0 dense=- window=4096"},
    {FOUR("qwen2_moe") "'sliding_window':0}", "windowed=- dense=- window=0"},
    {FOUR("gpt_oss") "'rms_norm_eps':1e-5}", "windowed=02 dense=- window=128"},
    {FOUR("gpt_oss") "'layer_types':['full_attention', 'sliding_attention', "
                     "'sliding_attention', 'full_attention']}",
     "windowed=12 dense=- window=128"},
    {FOUR("glm4_moe") "'first_k_dense_replace':2}", "windowed=- dense=01 window=0"},
    {FOUR("glm4_moe") "'moe_intermediate_size':8}", "windowed=- dense=0 window=0"},
    /* rotary schemes in both spellings */
    {MIXTRAL "'max_position_embeddings':256, 'rope_parameters':{'rope_type':'yarn', "
             "'rope_theta':100, 'truncate':false, "
             "'original_max_position_embeddings':64, 'beta_fast':4}}",
     "rope=yarn theta=100 factor=4 original=64 truncate=0 betas=4/0 width=16"},
    {MIXTRAL "'rope_theta':7, 'rope_scaling':{'type':'linear', 'factor':2.5}}",
     "rope=linear theta=7 factor=2.5"},
    {GPT_OSS "'rms_norm_eps':1e-5}", "rope=yarn factor=32"},
    {TWO("glm4_moe") EXPERTS "'rms_norm_eps':1e-5}", "width=8"},
};

TEST(test_keys_and_their_absence_give_the_expected_values) {
    for (size_t i = 0; i < MOERT_COUNT(read); i++) {
        moert_model_config config;
        ASSERT_OK(read_text(read[i].text, &config));
        assert_words(&config, read[i].words);
    }
}

/* The kept text describes the model as moert saves it: with plain weights, and without layers for
 * multi-token prediction. */
TEST(test_the_text_that_is_kept_is_of_plain_weights_without_prediction_layers) {
    moert_model_config config, again;
    ASSERT_OK(read_text(DEEPSEEK "'num_nextn_predict_layers':1}", &config));
    assert_non_null(strstr(config.text, "\"num_nextn_predict_layers\": 0"));
    ASSERT_OK(read_text(config.text, &again));
    assert_words(&again, "prediction=0");
    ASSERT_OK(read_text(QUANTIZED(QWEN3 "'rms_norm_eps':1e-06,", FP8("[128,128]")), &config));
    assert_words(&config, "quant=fp8");
    assert_null(strstr(config.text, "quantization_config"));
    assert_non_null(strstr(config.text, "\"rms_norm_eps\": 1e-6"));
    ASSERT_OK(read_text(config.text, &again));
    config.quant_method = NULL;
    assert_string_equal(describe(&again), describe(&config));
}

#define FORMAT      MOERT_ERROR_FORMAT
#define UNSUPPORTED MOERT_ERROR_UNSUPPORTED

typedef struct refused_config {
    const char *text;
    moert_status status;
    const char *part; /* part of the expected message */
} refused_config;

/* More refused configs are in test_refusals. */
static const refused_config broken[] = {
    {"", FORMAT, "JSON"},
    {"[]", FORMAT, "object"},
    {MIXTRAL, FORMAT, "JSON"},
    {"{'model_type':'mixtral', 'model_type':'olmoe'}", FORMAT, "JSON"},
    {"{'vocab_size':100}", FORMAT, "model_type"},
    {"{'model_type':3}", FORMAT, "model_type"},
    {TWO("mixtral") "'num_experts_per_tok':2}", FORMAT, "key num_local_experts"},
    {TWO("mixtral") "'num_experts':8}", FORMAT, "key num_experts_per_tok"},
    {MIXTRAL "'num_experts':16}", FORMAT, "num_experts"},
    {MIXTRAL "'head_dim':0}", FORMAT, "head_dim is 0"},
    {MIXTRAL "'head_dim':-4}", FORMAT, "head_dim is -4"},
    {MIXTRAL "'head_dim':2147483648}", FORMAT, "2147483647"},
    {MIXTRAL "'head_dim':99999999999999999999}", FORMAT, "JSON"},
    {MIXTRAL "'head_dim':16.0}", FORMAT, "integer"},
    {MIXTRAL "'head_dim':'16'}", FORMAT, "integer"},
    {MIXTRAL "'rms_norm_eps':0}", FORMAT, "rms_norm_eps"},
    {MIXTRAL "'rms_norm_eps':1e300}", FORMAT, "rms_norm_eps"},
    {MIXTRAL "'rms_norm_eps':true}", FORMAT, "rms_norm_eps"},
    {MIXTRAL "'tie_word_embeddings':1}", FORMAT, "tie_word"},
    {MIXTRAL "'hidden_act':'gelu'}", UNSUPPORTED, "gelu"},
    {MIXTRAL "'rope_parameters':7}", FORMAT, "rope_parameters"},
    {MIXTRAL "'rope_scaling':{'type':7}}", FORMAT, "rope_type"},
    {QWEN3 "'mlp_only_layers':0}", FORMAT, "mlp_only_layers"},
    {QWEN3 "'norm_topk_prob':'yes'}", FORMAT, "norm_topk_prob"},
    {TWO("deepseek_v3") "'num_key_value_heads':4, 'n_routed_experts':32, 'num_experts_per_tok':1}",
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
     "'awq'; supported are fp8 (e4m3 in blocks of 128x128) and, for gpt_oss, mxfp4; this model "
     "needs fp8"},
    {QUANTIZED(QWEN3, MXFP4), UNSUPPORTED, "'mxfp4'; supported are fp8"},
    {QUANTIZED(GPT_OSS, FP8("[128,128]")), UNSUPPORTED, "mxfp4; this model needs mxfp4"},
    {QUANTIZED(GPT_OSS, "{}"), UNSUPPORTED, "'(not a string)'"},
    {QUANTIZED(GPT_OSS, "7"), UNSUPPORTED, "'(not a string)'"},
    {QUANTIZED(QWEN3, "{'quant_method':'fp8', 'fmt':'e5m2'}"), UNSUPPORTED, "fmt is 'e5m2'"},
    {QUANTIZED(QWEN3, "{'quant_method':'fp8'}"), UNSUPPORTED, "weight_block_size"},
    {QUANTIZED(QWEN3, FP8("[128]")), UNSUPPORTED, "is not [128, 128]"},
    {QUANTIZED(QWEN3, FP8("[64,128]")), UNSUPPORTED, "is not [128, 128]"},
    {QUANTIZED(QWEN3, FP8("[128,128.5]")), UNSUPPORTED, "is not [128, 128]"},
    /* unknown keys, and values that are not neutral */
    {MIXTRAL "'clip_qkv':0.5}", UNSUPPORTED, "clip_qkv"},
    {MIXTRAL "'mlp_only_layers':[]}", UNSUPPORTED, "mlp_only_layers"},
    {QWEN3 "'layer_types':[]}", FORMAT, "layer_types"},
    {MIXTRAL "'attention_dropout':0.1}", UNSUPPORTED, "attention_dropout has a value other than 0"},
    {MIXTRAL "'router_jitter_noise':1e-3}", UNSUPPORTED, "router_jitter_noise"},
    {MIXTRAL "'attention_dropout':'0'}", UNSUPPORTED, "attention_dropout"},
    {DEEPSEEK "'moe_layer_freq':2}", UNSUPPORTED, "moe_layer_freq"},
    {DEEPSEEK "'is_encoder_decoder':true}", UNSUPPORTED, "is_encoder_decoder"},
    {MIXTRAL "'rope_scaling':{'type':'longrope'}}", UNSUPPORTED,
     "'longrope'; supported are default, linear, yarn and llama3"},
    {MIXTRAL "'rope_parameters':{'long_factor':[1]}}", UNSUPPORTED,
     "long_factor of rope_parameters"},
    {MIXTRAL "'rope_scaling':{'type':'linear'}}", FORMAT,
     "the key factor of rope_scaling is missing"},
    {MIXTRAL "'rope_scaling':{'type':'llama3', 'factor':8}}", FORMAT, "low_freq_factor"},
    {GPT_OSS "'layer_types':['full_attention']}", FORMAT, "a list of 2 layers"},
    {GPT_OSS "'layer_types':['full_attention', 'chunked_attention']}", UNSUPPORTED,
     "layer 1 is 'chunked_attention'"},
    {QWEN3 "'mlp_only_layers':[2]}", FORMAT, "has layer 2; expected layers below 2"},
    {QWEN3 "'mlp_only_layers':['0']}", FORMAT, "mlp_only_layers"},
};

TEST(test_broken_configs_are_refused_with_key_and_file) {
    moert_model_config config;
    for (size_t i = 0; i < MOERT_COUNT(broken); i++) {
        memset(&config, 0x5a, sizeof config);
        ASSERT_FAILS(read_text(broken[i].text, &config), broken[i].status, broken[i].part);
        assert_non_null(strstr(moert_last_error(), in_directory("config.json")));
        /* a failure leaves the output unchanged */
        assert_int_equal(config.hidden, (size_t)0x5a5a5a5a5a5a5a5a);
    }
    ASSERT_FAILS(moert_model_config_read("/tmp/absent-moert.json", &config), MOERT_ERROR_IO,
                 "/tmp/absent-moert.json");
}

static const refused_config not_models[] = {
    {GPT_OSS "'head_dim':7}", FORMAT, "7 elements of a head of 7 (head_dim) rotate"},
    {DEEPSEEK "'v_head_dim':600}", FORMAT, "v_head_dim is 600"},
    {QWEN3 "'head_dim':15}", FORMAT, "15"},
    {QWEN3 "'num_key_value_heads':3}", FORMAT, "num_key_value_heads is 3"},
    {MIXTRAL "'rope_scaling':{'type':'linear', 'factor':0}}", FORMAT, "factor"},
    {CONFIG("mixtral", "65", "1") EXPERTS "'rope_theta':7}", FORMAT, "hidden_size 65"},
    {CONFIG("mixtral", "64", "1025") EXPERTS "'rope_theta':7}", UNSUPPORTED, "1025, above 1024"},
};

TEST(test_the_model_check_refuses_unsupported_settings) {
    for (size_t i = 0; i < MOERT_COUNT(not_models); i++) {
        moert_model_config config;
        ASSERT_OK(read_text(not_models[i].text, &config));
        ASSERT_FAILS(moert_model_config_check_model(&config), not_models[i].status,
                     not_models[i].part);
    }
}

TESTS(make_test_directory, remove_test_directory)

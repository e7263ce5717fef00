// run: check=1 all=1san device=0
/* The value of --precision: names, files with recipes, the recipe itself, and every kind of wrong
 * recipe. */
#include "support/files.h"
#include "support/test.h"
#include "tools/common/recipe_file.h"

static moert_precision precision;
static moert_recipe recipe;

TEST(test_names_give_the_recipes_of_the_library) {
    static const struct {
        const char *name;
        moert_precision precision;
    } rows[] = {{"f32", MOERT_PRECISION_F32},     {"bf16", MOERT_PRECISION_BF16},
                {"mxfp8", MOERT_PRECISION_MXFP8}, {"nvfp4-plain", MOERT_PRECISION_NVFP4_PLAIN},
                {"fp8", MOERT_PRECISION_FP8},     {"nvfp4", MOERT_PRECISION_NVFP4}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *text = rows[i].name;
        ASSERT_OK(moert_recipe_read(&text, &precision, &recipe));
        assert_int_equal(precision, rows[i].precision);
        assert_ptr_equal(text, rows[i].name);
        assert_memory_equal(&recipe, moert_recipe_of(precision), sizeof recipe);
    }
}

/* A file's recipe becomes a text, which gives the same recipe. */
TEST(test_a_file_gives_its_recipe_which_becomes_the_value) {
    const uint32_t nvfp4 = MOERT_ROUND_TO(MOERT_FORMAT_NVFP4);
    write_json("recipe.json", "{\"x\": \"nvfp4\", \"weight\": \"nvfp4 tiles\",\n"
                              "\"dy\": \"nvfp4 stochastic\", \"wgrad_x\": \"nvfp4 hadamard\", "
                              "\"wgrad_dy\": \"nvfp4 stochastic hadamard\", \"bf16_last\": 0.5}");
    const char *text = in_directory("recipe.json");
    for (size_t i = 0; i < 2; i++) {
        memset(&recipe, 0xFF, sizeof recipe);
        ASSERT_OK(moert_recipe_read(&text, &precision, &recipe));
        assert_int_equal(precision, MOERT_PRECISION_RECIPE);
        assert_int_equal(recipe.x, nvfp4);
        assert_int_equal(recipe.weight, nvfp4 | MOERT_ROUND_TILES);
        assert_int_equal(recipe.dy, nvfp4 | MOERT_ROUND_STOCHASTIC);
        assert_int_equal(recipe.wgrad_x, nvfp4 | MOERT_ROUND_HADAMARD);
        assert_int_equal(recipe.wgrad_dy, nvfp4 | MOERT_ROUND_HADAMARD | MOERT_ROUND_STOCHASTIC);
        assert_true(recipe.bf16_first == 0.0 && recipe.bf16_last == 0.5 &&
                    recipe.bf16_finish == 0.0);
        assert_string_equal(text, "{\"bf16_last\":0.5,\"dy\":\"nvfp4 stochastic\","
                                  "\"weight\":\"nvfp4 tiles\",\"wgrad_dy\":\"nvfp4 stochastic "
                                  "hadamard\",\"wgrad_x\":\"nvfp4 hadamard\",\"x\":\"nvfp4\"}");
    }
}

TEST(test_attention_is_rounded_where_the_recipe_says_so) {
    static const struct {
        const char *text;
        bool attention;
    } rows[] = {{"{\"x\": \"nvfp4\", \"attention\": true}", true},
                {"{\"x\": \"nvfp4\", \"attention\": false}", false},
                {"{\"x\": \"nvfp4\"}", false},
                {"nvfp4", false}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *text = rows[i].text;
        ASSERT_OK(moert_recipe_read(&text, &precision, &recipe));
        assert_int_equal(recipe.attention, rows[i].attention);
    }
}

TEST(test_wrong_recipes_are_refused) {
    static const struct {
        moert_status status;
        const char *text, *message;
    } rows[] = {
        {MOERT_ERROR_USAGE, "nvpf4",
         "--precision is nvpf4; expected one of f32|bf16|mxfp8|nvfp4-plain|fp8|nvfp4, or a file"},
        {MOERT_ERROR_USAGE, "", "--precision is ; expected one of"},
        {MOERT_ERROR_FORMAT, "{\"x\": \"nvfp4\"", "recipe is not valid JSON"},
        {MOERT_ERROR_FORMAT, "{\"dx\": \"nvfp4\"}", "a recipe has no field dx"},
        {MOERT_ERROR_FORMAT, "{\"x\": \"fp4\"}", "x of a recipe has the word \"fp4\""},
        {MOERT_ERROR_FORMAT, "{\"x\": \"tiles nvfp4\"}", "x of a recipe has the word \"tiles\""},
        {MOERT_ERROR_FORMAT, "{\"x\": \"\"}", "x of a recipe is not a text"},
        {MOERT_ERROR_FORMAT, "{\"x\": 4}", "x of a recipe is not a text"},
        {MOERT_ERROR_FORMAT, "{\"bf16_last\": \"2\"}", "bf16_last of a recipe is not a number"},
        {MOERT_ERROR_FORMAT, "{\"attention\": 1}", "attention of a recipe is not true or false"},
        {MOERT_ERROR_USAGE, "{\"x\": \"nvfp4 tiles\"}", "x of a recipe is 0x104"},
        {MOERT_ERROR_USAGE, "{\"bf16_last\": 2}", "bf16_last of a recipe is 2"},
    };
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        const char *text = rows[i].text;
        ASSERT_FAILS(moert_recipe_read(&text, &precision, &recipe), rows[i].status,
                     rows[i].message);
    }
}

TESTS(make_test_directory, remove_test_directory)

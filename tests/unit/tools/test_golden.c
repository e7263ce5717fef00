// run: check=2
/*
 * Runs moert-train in this process and compares it with the golden models, families, packed
 * documents and masked targets. Compares logits and gradients of the first step, then losses and
 * gradient norms of all steps of AdamW. tests/e2e/golden_model.sh runs more numbers of ranks, and
 * both engines.
 */
#include <dirent.h>
#include <jansson.h>
#include <unistd.h>

#include "support/files.h"
#include "support/program.h"

static const char golden[] = "tests/golden";

/* Returns a field of a case's curve.json, or "" if it is absent. */
static const char *field(const char *path, const char *key) {
    json_error_t error;
    json_t *curve = json_load_file(titled("%s/curve.json", path), 0, &error);
    const json_t *value = json_object_get(curve, key);
    const char *text = json_is_string(value)    ? titled("%s", json_string_value(value))
                       : json_is_integer(value) ? titled("%lld", json_integer_value(value))
                       : json_is_number(value)  ? titled("%.17g", json_number_value(value))
                                                : "";
    json_decref(curve);
    return text;
}

static moert_status train(const char *path, const char *words) {
    const char *model = field(path, "model"), *end = field(path, "document_end");
    model = *model != '\0' ? titled("%s/%s", golden, model) : path;
    return run_program(
        &moert_train_program,
        titled("--model %s --tokens %s/expected.safetensors --document-end %s --lr 1e-3 "
               "--lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 --beta2 0.95 "
               "--log-every 0 --aux-coef %s %s",
               model, path, *end != '\0' ? end : "none", field(path, "aux_coef"), words));
}

/* Compares by tests/tools/compare. */
static void compare(const char *path, const char *words) {
    if (!run_shell(titled("${PROGRAM%%/unit/*}/compare %s >$DIR/log 2>&1", words)))
        fail_msg("%s: %s", path,
                 test_rank == 0 ? read_file(in_directory("log"), NULL) : "rank 0 compares");
}

static void check_case(const char *path) {
    const size_t before = owned_count();
    const bool graded = access(titled("%s/grads_step0.safetensors", path), F_OK) == 0;
    assert_true(run_shell("rm -rf ${DIR:?}/*"));
    ASSERT_OK_ON_ALL(train(path, titled("--save-logits $DIR/logits.safetensors%s",
                                        graded ? " --save-gradients $DIR/grads.safetensors" : "")));
    compare(path, titled("tensors --expected %s/expected.safetensors --only logits --actual "
                         "$DIR/logits.safetensors --tolerance 1e-5",
                         path));
    if (graded)
        compare(path, titled("tensors --expected %s/grads_step0.safetensors --actual "
                             "$DIR/grads.safetensors --tolerance 2e-5",
                             path));
    ASSERT_OK_ON_ALL(train(path, "--metrics $DIR/metrics.jsonl"));
    compare(path, titled("curve --expected %s/curve.json --metrics $DIR/metrics.jsonl "
                         "--tolerance 1e-4%s",
                         path, strtod(field(path, "aux_coef"), NULL) != 0.0 ? " --aux" : ""));
    release_since(before);
}

static void check_kind(const char *kind) {
    struct dirent **entries;
    const char *directory = titled("%s/%s", golden, kind);
    const int count = scandir(directory, &entries, NULL, alphasort);
    assert_true(count > 2);
    for (int i = 0; i < count; i++) {
        if (entries[i]->d_name[0] != '.')
            check_case(titled("%s/%s", directory, entries[i]->d_name));
        free(entries[i]);
    }
    free(entries);
}

TEST(test_models_have_the_logits_gradients_and_losses_of_transformers) {
    check_kind("model");
}

TEST(test_families_have_the_logits_gradients_and_losses_of_transformers) {
    check_kind("family");
}

TEST(test_documents_and_masks_have_the_losses_of_transformers) {
    check_kind("packed");
}

MPI_TESTS(open_context_and_shared_directory, close_context_and_shared_directory)

// run: check=1,2
/*
 * Models in other forms than moert writes them, through moert-train: experts of a layer in two
 * tensors, as transformers 5 holds them in memory, read and written; tensors that nothing reads.
 */
#include "support/files.h"
#include "support/program.h"

/* Families whose released files have a tensor for each expert, with the names of the fused ones. */
static const struct {
    const char *model, *fused;
} models[] = {
    {"model/mixtral-tiny", "model.layers.1.mlp.experts.gate_up_proj"},
    {"family/glm4-moe", "model.layers.1.mlp.experts.gate_up_proj"},
    {"family/olmoe-clip-llama3", "model.layers.0.mlp.experts.gate_up_proj"},
};

static moert_status train(const char *model, const char *tokens, const char *words) {
    return run_program(
        &moert_train_program,
        titled("--model %s --tokens tests/golden/%s/expected.safetensors --log-every "
               "0 --document-end none %s",
               model, tokens, words));
}

TEST(test_fused_experts_are_read_and_written) {
    for (size_t i = 0; i < MOERT_COUNT(models); i++) {
        const char *model = titled("tests/golden/%s", models[i].model), *tokens = models[i].model;
        assert_true(run_shell("rm -rf ${DIR:?}/*"));
        ASSERT_OK_ON_ALL(train(model, tokens, "--steps 0 --out $DIR/fused --fuse-experts"));
        if (test_rank == 0) {
            const moert_tensors *files =
                open_tensors(in_directory("fused/model/model.safetensors"));
            assert_non_null(moert_tensors_find(files, models[i].fused));
            for (size_t t = 0; t < moert_tensors_count(files); t++)
                assert_null(strstr(moert_tensors_at(files, t)->name, "block_sparse_moe"));
        }
        ASSERT_OK_ON_ALL(train(model, tokens, "--steps 2 --out $DIR/a --no-save-last"));
        ASSERT_OK_ON_ALL(
            train("$DIR/fused/model", tokens, "--steps 2 --out $DIR/b --no-save-last"));
        assert_true(
            run_shell("cmp $DIR/a/model/model.safetensors $DIR/b/model/model.safetensors && "
                      "! cmp -s $DIR/a/model/model.safetensors "
                      "$DIR/fused/model/model.safetensors"));
    }
}

MPI_TESTS(open_context_and_shared_directory, close_context_and_shared_directory)

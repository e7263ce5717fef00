// run: check=1,2
/*
 * moert-train with models in forms that moert does not write by default: the experts of a layer in
 * two tensors, as transformers 5 holds them in memory, read and written; tensors that no part of
 * the model reads.
 */
#include "support/files.h"
#include "support/program.h"

/* Models of families whose released files have a tensor for each expert. fused: the name of a
 * tensor of all experts. */
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

/* Writes x and dy [tokens, hidden] for moert-layer. */
static void write_layer_input(size_t tokens, size_t hidden) {
    float *x = test_alloc(2 * tokens * hidden * sizeof *x);
    for (size_t i = 0; i < 2 * tokens * hidden; i++)
        x[i] = (float)(i * 37 % 101) / 50.0f - 1.0f;
    const file_tensor tensors[] = {
        {{"x", MOERT_FILE_F32, 2, {tokens, hidden}}, x},
        {{"dy", MOERT_FILE_F32, 2, {tokens, hidden}}, x + tokens * hidden}};
    write_tensors("input.safetensors", tensors, MOERT_COUNT(tensors));
}

static const char *read_all(const moert_tensors *files, const char *name, size_t *elements,
                            float **values) {
    const moert_tensor *tensor = moert_tensors_find(files, name);
    *elements = 1;
    for (size_t i = 0; tensor != NULL && i < tensor->rank; i++)
        *elements *= tensor->shape[i];
    *values = test_alloc(*elements * sizeof **values);
    return tensor != NULL && moert_tensor_read_f32(tensor, 0, *elements, *values) == MOERT_OK
               ? NULL
               : name;
}

/* Checks that the fused tensors are the tensors of released files (gate, up and down of each
 * expert), joined. */
static void assert_joined(const moert_tensors *joined, const moert_tensors *released,
                          size_t experts) {
    static const char *const parts[] = {"w1", "w3", "w2"};
    for (size_t part = 0; part < MOERT_COUNT(parts); part++) {
        const bool down = part == 2;
        float *all, *one;
        size_t count, matrix;
        assert_null(read_all(
            joined,
            titled("grad.model.layers.1.mlp.experts.%s", down ? "down_proj" : "gate_up_proj"),
            &count, &all));
        for (size_t e = 0; e < experts; e++) {
            assert_null(
                read_all(released,
                         titled("grad.model.layers.1.block_sparse_moe.experts.%zu.%s.weight", e,
                                parts[part]),
                         &matrix, &one));
            assert_int_equal(count, experts * matrix * (down ? 1 : 2));
            assert_memory_equal(all + (down ? e : 2 * e + part) * matrix, one,
                                matrix * sizeof *one);
        }
    }
}

TEST(test_a_layer_of_fused_experts_has_the_bits_of_separate_ones) {
    enum { TOKENS = 24, HIDDEN = 64, EXPERTS = 8 };
    const char *model = "tests/golden/model/mixtral-tiny";
    if (test_rank == 0)
        write_layer_input(TOKENS, HIDDEN);
    ASSERT_OK_ON_ALL(train(model, "model/mixtral-tiny",
                           "--steps 0 --out $DIR/fused --fuse-experts --overwrite"));
    const char *const forms[] = {model, "$DIR/fused/model"};
    for (size_t i = 0; i < MOERT_COUNT(forms); i++)
        ASSERT_OK_ON_ALL(run_program(&moert_layer_program,
                                     titled("--model %s --layer 1 --input $DIR/input.safetensors "
                                            "--output $DIR/output-%zu.safetensors",
                                            forms[i], i)));
    if (test_rank != 0)
        return;
    const moert_tensors *released = open_tensors(in_directory("output-0.safetensors")),
                        *joined = open_tensors(in_directory("output-1.safetensors"));
    static const char *const names[] = {"y", "dx"};
    for (size_t i = 0; i < MOERT_COUNT(names); i++) {
        float *a, *b;
        size_t count, same;
        assert_null(read_all(released, names[i], &count, &a));
        assert_null(read_all(joined, names[i], &same, &b));
        assert_int_equal(count, same);
        assert_memory_equal(a, b, count * sizeof *a);
    }
    assert_joined(joined, released, EXPERTS);
}

MPI_TESTS(open_context_and_shared_directory, close_context_and_shared_directory)

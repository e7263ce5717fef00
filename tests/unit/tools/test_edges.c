// run: all=1 env=MOERT_BACKEND=reference
/*
 * Golden models with one edit each: a tensor added, dropped, renamed or reshaped, or a key of
 * config.json changed. moert refuses each by a message that names the tensor or the key, or trains
 * with the loss and the gradient norm of transformers; never with other numbers in silence.
 * EDGES=FILE has other cases, by tests/parity/edges.py.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "io/json.h"
#include "support/files.h"
#include "support/program.h"

static const double tolerance = 1e-4;

/* An edited copy of the tensors of a model. */
static void copy_tensors(const moert_tensors *from, const json_t *edit) {
    const char *name = json_string_value(json_object_get(edit, "tensor")),
               *to = json_string_value(json_object_get(edit, "to"));
    const json_t *shape = json_object_get(edit, "shape"), *size;
    const size_t count = moert_tensors_count(from);
    moert_tensor_spec *specs = test_alloc((count + 1) * sizeof *specs);
    const moert_tensor **source = test_alloc((count + 1) * sizeof *source);
    size_t used = 0, i;
    bool found = name == NULL;
    for (i = 0; i <= count; i++) {
        const moert_tensor *tensor = i < count ? moert_tensors_at(from, i) : NULL;
        const bool is_it =
            tensor != NULL ? name != NULL && strcmp(tensor->name, name) == 0 : !found;
        found |= is_it;
        if ((tensor == NULL && !is_it) || (is_it && shape == NULL && to == NULL))
            continue; /* there is nothing to add, or it is dropped */
        moert_tensor_spec *spec = &specs[used];
        source[used++] = tensor;
        *spec = (moert_tensor_spec){.name = tensor != NULL ? tensor->name : name,
                                    .type = tensor != NULL ? tensor->type : MOERT_FILE_F32};
        if (is_it && to != NULL)
            spec->name = to;
        if (is_it && shape != NULL) {
            json_array_foreach(shape, spec->rank, size) {
                spec->shape[spec->rank] = (size_t)json_integer_value(size);
            }
            spec->rank = json_array_size(shape);
        } else {
            spec->rank = tensor->rank;
            memcpy(spec->shape, tensor->shape, sizeof spec->shape);
        }
    }
    moert_tensor_writer *writer;
    ASSERT_OK(moert_writer_open(in_directory("model/model.safetensors"), specs, used, NULL, true,
                                &writer));
    for (i = 0; i < used; i++) {
        size_t elements = 1;
        for (size_t k = 0; k < specs[i].rank; k++)
            elements *= specs[i].shape[k];
        float *half = test_alloc(elements * sizeof *half);
        for (size_t k = 0; k < elements; k++)
            half[k] = 0.5f;
        ASSERT_OK(moert_writer_put(writer, specs[i].name, 0, elements,
                                   source[i] != NULL ? source[i]->data : half));
    }
    ASSERT_OK(moert_writer_close(writer));
}

static void copy_config(const char *model, const json_t *edit) {
    const char *key = json_string_value(json_object_get(edit, "key"));
    json_t *config, *value = json_object_get(edit, "value");
    ASSERT_OK(moert_json_read(titled("%s/config.json", model), "it", 1 << 20, &config));
    if (key != NULL && value != NULL)
        json_object_set(config, key, value);
    else if (key != NULL)
        json_object_del(config, key);
    ASSERT_OK(moert_json_write(in_directory("model/config.json"), config, JSON_INDENT(1)));
    json_decref(config);
}

/* Whether the last message names what was edited, or the tensors that follow from it. */
static bool names(const json_t *edit) {
    const char *tensor = json_string_value(json_object_get(edit, "tensor")),
               *key = json_string_value(json_object_get(edit, "key")), *text = moert_last_error();
    return tensor != NULL ? strstr(text, tensor) != NULL
                          : strstr(text, key) != NULL || strstr(text, "tensor '") != NULL ||
                                strstr(text, "the vocabulary of") != NULL;
}

static bool near(const json_t *got, const json_t *want) {
    const double wanted = json_number_value(want);
    return json_is_number(got) && json_is_number(want) &&
           fabs(json_number_value(got) - wanted) <= tolerance * fmax(fabs(wanted), 1e-2);
}

/* True if the case ends as it should; *trained tells whether it was trained. */
static bool run_case(const json_t *one, bool *trained) {
    const char *model = json_string_value(json_object_get(one, "model"));
    const json_t *edit = json_object_get(one, "edit");
    const char *metrics = in_directory("metrics.jsonl");
    json_t *row;
    copy_config(model, edit);
    copy_tensors(open_tensors(model), edit);
    unlink(metrics);
    const moert_status status = run_program(
        &moert_train_program,
        titled("--model %s --tokens %s/expected.safetensors --document-end none --steps 1 "
               "--aux-coef 0 --bias-rate 0 --grad-clip 0 --log-every 0 --metrics %s",
               in_directory("model"), model, metrics));
    *trained = status == MOERT_OK;
    if (!*trained)
        return names(edit);
    ASSERT_OK(moert_json_read(metrics, "it", 1 << 16, &row));
    const bool right = near(json_object_get(row, "loss"), json_object_get(one, "loss")) &&
                       near(json_object_get(row, "grad_norm"), json_object_get(one, "norm"));
    json_decref(row);
    return right;
}

TEST(test_an_edited_model_is_refused_by_name_or_trains_as_in_transformers) {
    const char *file = getenv("EDGES") != NULL ? getenv("EDGES") : "tests/golden/edges.json";
    json_t *root;
    const json_t *one;
    size_t i, wrong = 0, trained = 0;
    ASSERT_OK(moert_json_read(file, "the cases", 1 << 26, &root));
    const json_t *cases = json_object_get(root, "cases");
    assert_int_equal(mkdir(in_directory("model"), 0777), 0);
    json_array_foreach(cases, i, one) {
        const size_t before = owned_count();
        bool trains = false;
        if (!run_case(one, &trains)) {
            char *text = json_dumps(one, JSON_COMPACT);
            print_error("case %zu %s: %s\n", i,
                        trains ? "trains with other numbers" : moert_last_error(), text);
            free(text);
            wrong++;
        }
        trained += trains;
        release_since(before);
    }
    print_message("# %zu of %zu cases train\n", trained, json_array_size(cases));
    assert_int_equal(wrong, 0);
    assert_true(10 * trained >= 3 * json_array_size(cases));
    json_decref(root);
}

MPI_TESTS(open_context_and_directory, close_context_and_directory)

// run: all=1 env=MOERT_BACKEND=reference
/*
 * Golden models with one edit each: a tensor added, dropped, renamed or reshaped, or a key of
 * config.json changed. moert either refuses the model with a message that names the tensor or the
 * key, or trains with the loss and the gradient norm of transformers. moert never trains with
 * other numbers without a message. EDGES=FILE runs other cases, which tests/parity/edges.py writes.
 */
#include <sys/stat.h>
#include <unistd.h>

#include "io/json.h"
#include "support/files.h"
#include "support/program.h"

static const double tolerance = 1e-4;

/* A tensor of the edited model: its spec, and the tensor that gives its values; NULL: each value is
 * 0.5. */
typedef struct edited {
    moert_tensor_spec spec;
    const moert_tensor *source;
} edited;

static void reshape(moert_tensor_spec *spec, const json_t *shape) {
    const json_t *size;
    json_array_foreach(shape, spec->rank, size) {
        spec->shape[spec->rank] = (size_t)json_integer_value(size);
    }
    spec->rank = json_array_size(shape);
}

/* Applies the edit to the list of a model's tensors. Writes the new list to all[count + 1] and
 * returns its length. */
static size_t list_edited(const moert_tensors *from, const json_t *edit, edited *all) {
    const char *name = json_string_value(json_object_get(edit, "tensor")),
               *to = json_string_value(json_object_get(edit, "to"));
    const json_t *shape = json_object_get(edit, "shape");
    size_t used = 0;
    bool found = name == NULL;
    for (size_t i = 0; i < moert_tensors_count(from); i++) {
        const moert_tensor *t = moert_tensors_at(from, i);
        const bool is_it = name != NULL && strcmp(t->name, name) == 0;
        edited *one = &all[used];
        found |= is_it;
        *one = (edited){{is_it && to != NULL ? to : t->name, t->type, t->rank, {0}}, t};
        memcpy(one->spec.shape, t->shape, sizeof t->shape);
        if (is_it && shape != NULL)
            reshape(&one->spec, shape);
        used += !is_it || shape != NULL || to != NULL; /* otherwise the edit drops this tensor */
    }
    if (!found) {
        all[used] = (edited){{.name = name, .type = MOERT_FILE_F32}, NULL};
        reshape(&all[used++].spec, shape);
    }
    return used;
}

/* Writes the tensors of a model after the edit. */
static void copy_tensors(const moert_tensors *from, const json_t *edit) {
    const size_t most = moert_tensors_count(from) + 1;
    edited *all = test_alloc(most * sizeof *all);
    moert_tensor_spec *specs = test_alloc(most * sizeof *specs);
    const size_t count = list_edited(from, edit, all);
    moert_tensor_writer *writer;
    for (size_t i = 0; i < count; i++)
        specs[i] = all[i].spec;
    ASSERT_OK(moert_writer_open(in_directory("model/model.safetensors"), specs, count, NULL, true,
                                &writer));
    for (size_t i = 0; i < count; i++) {
        size_t elements = 1;
        for (size_t k = 0; k < specs[i].rank; k++)
            elements *= specs[i].shape[k];
        float *half = test_alloc(elements * sizeof *half);
        for (size_t k = 0; k < elements; k++)
            half[k] = 0.5f;
        ASSERT_OK(moert_writer_put(writer, specs[i].name, 0, elements,
                                   all[i].source != NULL ? all[i].source->data : half));
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

/* Whether the last message names the edited tensor or key, or a tensor that the edited key
 * affects. */
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

/* True if the case ends as expected; *trained becomes true if the case trained the model. */
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

// run: check=1,2
/*
 * The messages and records of moert-train about runs: older runs in the same directory, resumes
 * with other options, steps without finite scores, layers that collapse, models without weights,
 * chats.
 */
#include "base/log.h"
#include "io/json.h"
#include "support/data.h"
#include "support/program.h"

#define SMALL                                                                                      \
    "--data LICENSE --hidden 32 --intermediate 32 --layers 2 --heads 2 --length 32 --batch 4 "     \
    "--log-every 0"

static moert_status train(const char *words) {
    return run_program(&moert_train_program, titled(SMALL " %s", words));
}

/* All warnings since the last call of warnings_of(). */
static char warnings[4096];
static void note(void *user, int level, const char *line) {
    (void)user, (void)level;
    snprintf(warnings + strlen(warnings), sizeof warnings - strlen(warnings), "%s\n", line);
}

/* Runs moert-train and returns the warnings of rank 0; *status gets the status of the run. */
static const char *warnings_of(const char *words, moert_status *status) {
    warnings[0] = '\0';
    moert_log_set_sink(note, NULL);
    *status = train(words);
    moert_log_set_sink(NULL, NULL);
    return warnings;
}

static void clear(void) {
    assert_true(run_shell("rm -rf ${DIR:?}/*"));
}

TEST(test_a_finished_run_is_not_overwritten_unasked) {
    clear();
    ASSERT_OK_ON_ALL(train("--steps 2 --out $DIR/run"));
    assert_true(run_shell("[ $(ls $DIR/run/checkpoints) = step-00000002 ]")); /* the last step's */
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run"), MOERT_ERROR_USAGE,
                        "has the model of an older run, which would be lost");
    assert_true(run_shell("rm -r $DIR/run/model"));
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run"), MOERT_ERROR_USAGE,
                        "is of an older run; --resume auto goes on with it");
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --overwrite --resume auto"),
                        MOERT_ERROR_USAGE, "--resume goes on with the run that --overwrite");
    ASSERT_OK_ON_ALL(train("--steps 1 --out $DIR/run --overwrite --no-save-last"));
    assert_true(
        run_shell("[ -e $DIR/run/model/config.json -a -z \"$(ls $DIR/run/checkpoints)\" ]"));
}

TEST(test_a_resume_says_what_it_resumes) {
    moert_status status;
    clear();
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --resume must"), MOERT_ERROR_USAGE,
                        "--resume must: ");
    ASSERT_OK_ON_ALL(train("--steps 1 --out $DIR/run --resume auto"));
    const char *text = warnings_of("--steps 1 --out $DIR/run --resume must", &status);
    ASSERT_ON_ALL(status == MOERT_OK && strstr(text, "was trained with --") == NULL);
    static const struct {
        const char *option, *before;
    } rows[] = {{"--aux-coef 0.02", "--aux-coef 0.01"},
                {"--aux-form megatron", "--aux-form hugging-face"},
                {"--z-coef 0.001", "--z-coef 0"},
                {"--beta1 0.8", "--beta1 0.9"},
                {"--beta2 0.9", "--beta2 0.95"},
                {"--epsilon 1e-06", "--epsilon 1e-08"},
                {"--weight-decay 0", "--weight-decay 0.1"},
                {"--grad-clip 2", "--grad-clip 1"},
                {"--micro-batches 2", "--micro-batches 1"},
                {"--precision bf16", "--precision f32"},
                {"--moments bf16", "--moments f32"},
                {"--steps 3", "--steps 1"}};
    for (size_t i = 0; i < MOERT_COUNT(rows); i++) {
        text = warnings_of(titled("--out $DIR/run --resume auto %s%s", rows[i].option,
                                  i + 1 < MOERT_COUNT(rows) ? " --steps 1" : ""),
                           &status);
        ASSERT_ON_ALL(status == MOERT_OK);
        if (test_rank == 0 && strstr(text, titled("trained with %s; this run goes on with %s",
                                                  rows[i].before, rows[i].option)) == NULL)
            fail_msg("%s: '%s'", rows[i].option, text);
    }
    ASSERT_ON_ALL(test_rank > 0 ||
                  strstr(text, "the learning rate goes from 0.0001 to 0.000775, since --steps"));
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --resume auto --experts 4"),
                        MOERT_ERROR_MISMATCH, "was made with number of experts 8, this run has 4");
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --resume auto --layers 1"),
                        MOERT_ERROR_MISMATCH, "was made with num_hidden_layers 2, this run has 1");
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --resume auto --optimizer sgd"),
                        MOERT_ERROR_MISMATCH,
                        "has the moments of --optimizer adamw, but this run has --optimizer sgd");
    /* a checkpoint from before --optimizer existed has AdamW's moments */
    assert_true(run_shell("sed -i \"s/--optimizer adamw.n//\" $DIR/run/checkpoints/*/state.json && "
                          "! grep -q optimizer $DIR/run/checkpoints/*/state.json"));
    ASSERT_FAILS_ON_ALL(train("--steps 1 --out $DIR/run --no-checksums --resume auto "
                              "--optimizer sgd"),
                        MOERT_ERROR_MISMATCH,
                        "has the moments of --optimizer adamw, but this run has --optimizer sgd");
    ASSERT_OK_ON_ALL(train("--steps 1 --out $DIR/run --no-checksums --resume auto"));
}

#define NVFP4 "--precision nvfp4 --lr-schedule constant --out $DIR/run "
TEST(test_a_resume_says_what_becomes_of_a_recipe) {
    moert_status status;
    clear();
    ASSERT_OK_ON_ALL(train(NVFP4 "--steps 2"));
    const char *text = warnings_of(NVFP4 "--steps 40 --resume auto", &status);
    ASSERT_ON_ALL(status == MOERT_OK && strstr(text, "nvfp4-plain") == NULL);
    ASSERT_ON_ALL(
        test_rank > 0 ||
        strstr(text, "the steps in bf16 at the end begin at step 33 instead of 2, since"));
    /* a checkpoint from before recipes existed */
    assert_true(
        run_shell("sed -i \"/recipes/d; /options/s/,$//\" $DIR/run/checkpoints/*/state.json"));
    text = warnings_of(NVFP4 "--steps 40 --no-checksums --resume auto", &status);
    ASSERT_ON_ALL(status == MOERT_OK && strstr(text, "the steps in bf16") == NULL);
    ASSERT_ON_ALL(test_rank > 0 || strstr(text, "whose --precision nvfp4 is now nvfp4-plain; "));
}

/* Returns the value of an option in a session of a run's record, as JSON, and the source of the
 * value. */
static const char *recorded(const json_t *session, const char *name) {
    const json_t *option = json_object_get(json_object_get(session, "options"), name);
    char *value =
        json_dumps(json_object_get(option, "value"), JSON_ENCODE_ANY | JSON_REAL_PRECISION(15));
    const char *text = titled("%s %s", value, json_string_value(json_object_get(option, "source")));
    free(value);
    return text;
}

/* Reads the record of the run, and checks the numbers in it. */
static json_t *read_record(const char *status, json_int_t step, size_t sessions) {
    json_t *root;
    const char *found;
    json_int_t steps, tokens, parameters, last, best;
    ASSERT_OK(moert_json_read(titled("%s/run/run.json", getenv("DIR")), "it", 1 << 20, &root));
    assert_int_equal(json_unpack(root, "{ss sI sI s{sI} s{sI sI}}", "status", &found, "step",
                                 &steps, "tokens", &tokens, "model", "parameters", &parameters,
                                 "held_out", "last_step", &last, "best_step", &best),
                     0);
    assert_string_equal(found, status);
    assert_int_equal(steps, step);
    assert_int_equal(tokens, step * 4 * 32);
    assert_int_equal(parameters,
                     2 * (8 * 3 * 32 * 32 + 4 * 32 * 32 + 8 * 32 + 2 * 32) + 2 * 256 * 32 + 32);
    assert_int_equal(last, step);
    assert_int_equal(json_array_size(json_object_get(root, "sessions")), sessions);
    return root;
}

TEST(test_a_record_says_what_ran_and_how_far) {
    moert_status status;
    clear();
    set_variable("MOERT_LOG", "warn");
    ASSERT_OK_ON_ALL(train("--steps 2 --eval-every 1 --lr 0.002 --out $DIR/run"));
    ASSERT_OK_ON_ALL(train("--steps 3 --eval-every 1 --lr 0.002 --out $DIR/run --resume auto"));
    set_variable("MOERT_LOG", NULL);
    /* an evaluation of the run leaves its record as it is */
    const char *text =
        warnings_of("--steps 0 --eval-every 1 --lr 0.002 --out $DIR/run --resume must", &status);
    ASSERT_ON_ALL(status == MOERT_OK && text[0] == '\0');
    if (test_rank > 0)
        return;
    json_t *root = read_record("ended", 3, 2);
    const json_t *sessions = json_object_get(root, "sessions"),
                 *session = json_array_get(sessions, 1);
    assert_string_equal(recorded(session, "lr"), "0.002 given");
    assert_string_equal(recorded(session, "beta1"), "0.9 default");
    assert_string_equal(recorded(session, "length"), "32 given");
    assert_string_equal(recorded(session, "metrics"),
                        titled("\"%s/run/metrics.jsonl\" derived", getenv("DIR")));
    assert_string_equal(recorded(session, "MOERT_LOG"), "\"warn\" environment");
    assert_int_equal(json_integer_value(json_object_get(session, "from_step")), 2);
    assert_true(json_is_string(json_object_get(session, "ended")));
    assert_int_equal(json_array_size(json_object_get(session, "ranks")), test_ranks);
    json_decref(root);
}

TEST(test_a_run_keeps_its_best_checkpoint_and_stops_early) {
    clear();
    name_words("RATE", "--lr 0.1 --lr-schedule constant --eval-every 2 --eval-sequences 2");
    ASSERT_OK_ON_ALL(train("$RATE --steps 24 --early-stop 2 --keep-best --keep-last 1 "
                           "--out $DIR/run"));
    assert_true(run_shell("cd $DIR/run; [ $(wc -l <metrics.jsonl) = 14 ] && "
                          "[ \"$(echo $(ls checkpoints))\" = \"step-00000010 step-00000014\" ]"));
    /* the lowest loss of metrics.jsonl and of the checkpoint */
    assert_true(run_shell("cd $DIR/run; grep -o \"heldout_loss.*\" metrics.jsonl | tr -d \",}\" | "
                          "sort -k 2 -n | head -n 1 | cut -d \" \" -f 2 | "
                          "grep -qFf - checkpoints/step-00000014/state.json"));
    ASSERT_OK_ON_ALL(train("$RATE --steps 24 --early-stop 2 --out $DIR/run --resume must"));
    assert_true(run_shell("[ $(wc -l <$DIR/run/metrics.jsonl) = 14 ]"));
    ASSERT_OK_ON_ALL(train("$RATE --steps 24 --out $DIR/run --resume must"));
    ASSERT_OK_ON_ALL(train("$RATE --steps 24 --out $DIR/whole"));
    assert_true(run_shell("cd $DIR; diff -r run/model whole/model && "
                          "diff <(cut -d \" \" -f 1-10 run/metrics.jsonl) "
                          "<(cut -d \" \" -f 1-10 whole/metrics.jsonl)"));
    ASSERT_FAILS_ON_ALL(train("--steps 1 --keep-best --out $DIR/none"), MOERT_ERROR_USAGE,
                        "--keep-best needs held-out losses; give --eval-every");
    ASSERT_FAILS_ON_ALL(train("--steps 1 --early-stop 1"), MOERT_ERROR_USAGE,
                        "--early-stop needs held-out losses; give --eval-every");
    ASSERT_FAILS_ON_ALL(train("--steps 1 --eval-every 1 --keep-best"), MOERT_ERROR_USAGE,
                        "--keep-best saves checkpoints; give --out");
}

TEST(test_steps_without_finite_scores_are_skipped_on_all_ranks_alike) {
    moert_status status;
    const char *text = warnings_of(
        "--steps 30 --lr 1e5 --max-skipped 3 --micro-batches 2 --verify 1 --lr-schedule constant",
        &status);
    ASSERT_ON_ALL(status == MOERT_ERROR_NUMERIC &&
                  strstr(moert_last_error(), "3 steps in a row had non-finite gradients") != NULL);
    if (test_rank == 0)
        assert_true(
            matches(text, "step [0-9]+, layer [01]: .*token [0-9]+ has non-finite routing"));
}

TEST(test_a_replayed_step_without_gradients_saves_none) {
    static const char *const words[] = {
        "--lr 1e5 --max-skipped 30 --lr-schedule constant --steps 12 --out $DIR/lost",
        "--steps 12 --out $DIR/skipping --skip-steps 11:12"};
    clear();
    for (size_t i = 0; i < MOERT_COUNT(words); i++) {
        moert_status status;
        warnings_of(words[i], &status);
        ASSERT_ON_ALL(status == MOERT_OK);
        warnings_of(titled("%s --replay 10:2 --save-gradients $DIR/gradients", words[i]), &status);
        ASSERT_ON_ALL(status == MOERT_ERROR_NUMERIC &&
                      strstr(moert_last_error(), "step 11 has no gradients to save") != NULL);
        assert_true(run_shell("! test -e $DIR/gradients"));
    }
}

TEST(test_a_layer_that_collapses_is_named_once) {
    moert_status status;
    const char *text = warnings_of("--steps 20 --aux-coef 0 --lr 0.3 --grad-clip 0", &status);
    ASSERT_ON_ALL(status == MOERT_OK);
    if (test_rank == 0) {
        const char *first = strstr(text, "has collapsed at step");
        assert_true(matches(text, "layer [01] has collapsed at step [0-9]+: all 128 tokens choose "
                                  "expert [0-7] of 8"));
        assert_null(strstr(first + 1, "has collapsed"));
    }
}

TEST(test_a_config_alone_is_trained_from_random_weights) {
    clear();
    assert_true(
        run_shell("mkdir $DIR/bare && cp tests/golden/model/mixtral-tiny/config.json $DIR/bare"));
    const char *words =
        "--model $DIR/bare --data LICENSE --steps 1 --length 32 --batch 2 --log-every 0";
    ASSERT_FAILS_ON_ALL(run_program(&moert_train_program, words), MOERT_ERROR_IO,
                        "moert-train --random-weights needs config.json alone");
    ASSERT_OK_ON_ALL(run_program(&moert_train_program, titled("%s --random-weights", words)));
    ASSERT_FAILS_ON_ALL(train("--steps 1 --random-weights"), MOERT_ERROR_USAGE, "needs --model");
}

/* The turns of a chat end with the model's end token. */
TEST(test_a_chat_has_the_loss_of_the_whole_conversation) {
    enum { TOKENS = 30, TURN = 10, END = 5 };
    /* the loss that transformers 5.24 computes for these tokens and targets */
    static const double loss = 6.0186772664;
    uint16_t tokens[TOKENS];
    unsigned char mask[TOKENS];
    json_t *row;
    for (uint16_t i = 0; i < TOKENS; i++) {
        tokens[i] = i % TURN == TURN - 1 ? END : (37 * i + 11) % 250;
        mask[i] = i % TURN >= TURN / 2;
    }
    clear();
    if (test_rank == 0) {
        const int32_t length = TOKENS;
        write_dataset("chat", tokens, sizeof tokens,
                      (index_lists){.code = 8, .sequences = 1, .lengths = &length});
        write_file("chat.mask.bin", mask, sizeof mask);
    }
    assert_true(run_shell("cp -r tests/golden/model/qwen3-tiny $DIR/model && sed -i "
                          "\"s/\\\"eos_token_id\\\": null/\\\"eos_token_id\\\": 5/\" "
                          "$DIR/model/config.json && grep -q \"_id.: 5\" $DIR/model/config.json"));
    ASSERT_OK_ON_ALL(run_program(&moert_train_program,
                                 "--model $DIR/model --data $DIR/chat --held-out 0 --batch 2 "
                                 "--length 29 --steps 1 --aux-coef 0 --log-every 0 --metrics "
                                 "$DIR/metrics.jsonl"));
    if (test_rank > 0)
        return;
    ASSERT_OK(moert_json_read(in_directory("metrics.jsonl"), "it", 4096, &row));
    owned(row, json_decref);
    assert_within(json_number_value(json_object_get(row, "loss")), loss, 1e-5 * loss);
}

MPI_TESTS(open_context_and_shared_directory, close_context_and_shared_directory)

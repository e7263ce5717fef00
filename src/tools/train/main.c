/* moert-train: trains a Mixtral or Qwen3-MoE language model on text or tokens, on any number of
 * ranks. */
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "io/durable.h"
#include "io/lock.h"
#include "tools/common/program.h"
#include "tools/train/config.h"
#include "tools/train/data.h"
#include "tools/train/memory.h"
#include "tools/train/record.h"
#include "train/trainer.h"
#include "train/values.h"
#include "train/checksums.h"

enum { SAMPLE_LIMIT = 100000 };

static moert_model_sizes sizes;
static moert_trainer_options trainer;
static const char *model_path, *token_file, *prompt, *resume, *gradients_path, *logits_path,
    *document_end;
static const char *replay_steps, *skip_steps, *split_weights;
static moert_option_list data_paths;
static size_t model_file_mb, token_bits, ep, sample_bytes, spare_slots;
static moert_split split;
static double held_out, temperature, save_rate, peak_tflops;
static unsigned schedule_kind, aux_form, save_mode, save_dtype, order, on_mismatch, replicas;
static bool balanced_routing, takes_bytes, has_vocabulary, random_weights, fuse_experts, untied,
    overwrites;
static moert_compute_choice compute_choice;
static moert_memory_choice memory_choice;
static const char *most_memory;
static size_t most_bytes;

static const moert_option options[] = {
    {.help = "Model: read from a directory, or new with the given sizes"},
    {"model", MOERT_OPTION_STRING, &model_path, NULL, NULL,
     "directory with config.json and safetensors files"},
    {"random-weights", MOERT_OPTION_FLAG, &random_weights, NULL, NULL,
     "with --model: take its config.json alone, and new weights by --seed"},
    {"form", MOERT_OPTION_CHOICE, &sizes.form, "mixtral", MOERT_FORM_WORDS, "form of a new model"},
    {"vocabulary", MOERT_OPTION_UINT, &sizes.vocabulary, "256", "1..1000000",
     "number of tokens; 256 for text, whose bytes are the tokens; default with a dataset by "
     "launch/tokenize: its tokenizer's"},
    {"hidden", MOERT_OPTION_UINT, &sizes.hidden, "128", "2..65536", "hidden size"},
    {"intermediate", MOERT_OPTION_UINT, &sizes.intermediate, "256", "1..262144",
     "size of an expert"},
    {"layers", MOERT_OPTION_UINT, &sizes.layers, "2", "1..1000", "layers"},
    {"heads", MOERT_OPTION_UINT, &sizes.heads, "4", "1..1024", "attention heads"},
    {"kv-heads", MOERT_OPTION_UINT, &sizes.kv_heads, "0", "0..1024",
     "heads of keys and values; 0 = the number of --heads"},
    {"head-size", MOERT_OPTION_UINT, &sizes.head_size, "0", "0..512", "0 = hidden / heads"},
    {"experts", MOERT_OPTION_UINT, &sizes.experts, "8", "1..1024", "experts per layer"},
    {"topk", MOERT_OPTION_UINT, &sizes.topk, "2", "1..1024", "experts per token"},
    {.help = "Data"},
    {"data", MOERT_OPTION_LIST, &data_paths, NULL, NULL,
     "files and directories of text (symbolic links are skipped), or one Megatron dataset, "
     "NAME.bin with NAME.idx; or a blend of such sources: 0.7 A 0.3 B, or a file NAME.json with "
     "{\"A\": 0.7, \"B\": 0.3}"},
    {"tokens", MOERT_OPTION_STRING, &token_file, NULL, NULL,
     "token file: raw integers, or a .safetensors file with tokens[steps,B,S+1], replayed batch by "
     "batch, and with targets[steps,B,S], of which -1 does not count, if not all do"},
    {"bytes", MOERT_OPTION_FLAG, &takes_bytes, NULL, NULL,
     "take the bytes of text as tokens although the vocabulary is not 256"},
    {"token-bits", MOERT_OPTION_UINT, &token_bits, "16", "16..32", "width of raw tokens, 16 or 32"},
    {"document-end", MOERT_OPTION_STRING, &document_end, NULL, NULL,
     "token (its number, or its text in --model's tokenizer.json) that ends a document inside a "
     "sequence, which attention and positions then respect, or none. Megatron datasets know their "
     "documents without it; default for raw token files: eos_token_id of --model"},
    {"order", MOERT_OPTION_CHOICE, &order, "auto", "auto|epochs|random",
     "epochs use every token of every document once; random: each sequence starts anywhere; auto: "
     "epochs of a Megatron dataset, else random"},
    {"held-out", MOERT_OPTION_FLOAT, &held_out, "0.05", "0..0.9",
     "part of the data kept for the held-out loss"},
    {"split", MOERT_OPTION_STRING, &split_weights, NULL, NULL,
     "weights of training, held-out and test data, such as 969,30,1, instead of --held-out; test "
     "data give a loss at the end"},
    {.help = "Training"},
    {"steps", MOERT_OPTION_UINT, &trainer.steps, NULL, "0..",
     "optimizer steps; default: as many as the token file has, else 100"},
    {"batch", MOERT_OPTION_UINT, &trainer.batch, "0", "0..1000000",
     "sequences per step, over all ranks; 0 = as in the token file, else 16"},
    {"micro-batches", MOERT_OPTION_UINT, &trainer.micro_batches, "1", "1..1000000",
     "parts of a batch, computed one after another; each balances the loads of its own tokens"},
    {"length", MOERT_OPTION_UINT, &trainer.length, "0", "0..1000000",
     "tokens per sequence; 0 = as in the token file, else 128"},
    {"lr", MOERT_OPTION_FLOAT, &trainer.schedule.rate, "1e-3", "0..", "learning rate"},
    {"lr-schedule", MOERT_OPTION_CHOICE, &schedule_kind, "cosine", "constant|cosine|linear",
     "after the warm-up"},
    {"lr-floor", MOERT_OPTION_FLOAT, &trainer.schedule.floor_fraction, "0.1", "0..1",
     "final learning rate of cosine and linear, as a fraction of --lr"},
    {"lr-decay", MOERT_OPTION_UINT, &trainer.schedule.decay, "0", "0..",
     "the rate falls only in these last steps (warm-up, stable, decay); 0 = from the warm-up on"},
    {"warmup", MOERT_OPTION_UINT, &trainer.schedule.warmup, "0", "0..", "steps of linear warm-up"},
    {"weight-decay", MOERT_OPTION_FLOAT, &trainer.optimizer.decay, "0.1", "0..", "on matrices"},
    {"decay-all", MOERT_OPTION_FLAG, &trainer.optimizer.decay_all, NULL, NULL, "also decay norms"},
    {"beta1", MOERT_OPTION_FLOAT, &trainer.optimizer.beta1, "0.9", "0..0.9999999", "of AdamW"},
    {"beta2", MOERT_OPTION_FLOAT, &trainer.optimizer.beta2, "0.95", "0..0.9999999", "of AdamW"},
    {"epsilon", MOERT_OPTION_FLOAT, &trainer.optimizer.epsilon, "1e-8", "1e-30..", "of AdamW"},
    {"momentum", MOERT_OPTION_FLOAT, &trainer.optimizer.momentum, "0.9", "0..0.9999999",
     "of --optimizer sgd"},
    {"grad-clip", MOERT_OPTION_FLOAT, &trainer.optimizer.clip, "1", "0..",
     "largest gradient norm; 0 = no clipping"},
    {"aux-coef", MOERT_OPTION_FLOAT, &trainer.losses.aux_coefficient, "0.01", "0..",
     "of the load-balancing loss"},
    {"aux-form", MOERT_OPTION_CHOICE, &aux_form, "hugging-face", MOERT_AUX_WORDS,
     "load balance of all layers together, of each layer, or of each sequence in each layer"},
    {"z-coef", MOERT_OPTION_FLOAT, &trainer.losses.z_coefficient, "0", "0..",
     "of the router's z-loss"},
    {"bias-rate", MOERT_OPTION_FLOAT, &trainer.bias_rate, NULL, "0..",
     "change of each correction bias per step, for routers that have them; 0 = fixed. Default: "
     "1e-3 for a new model, 0 for --model"},
    {"rebalance", MOERT_OPTION_UINT, &trainer.rebalance_every, "0", "0..",
     "steps after which experts move between ranks, so that the ranks get equal numbers of rows; "
     "no bit of the results changes; 0 = none"},
    {"spare-slots", MOERT_OPTION_UINT, &spare_slots, "1", "0..1024",
     "with --rebalance: each rank has room for so many experts of a layer more than its share"},
    {"clones", MOERT_OPTION_FLAG, &trainer.clones, NULL, NULL,
     "with --rebalance: several ranks share the rows of an expert that has more than a rank's "
     "share, in their spare slots. On CPUs no bit of the results changes"},
    {"balanced-routing", MOERT_OPTION_FLAG, &balanced_routing, NULL, NULL,
     "only to compare speeds: hashes of the routers' logits choose the experts, so that these get "
     "nearly equal numbers of rows; the model does not learn to route"},
    {"max-skipped", MOERT_OPTION_UINT, &trainer.max_skipped, "10", "1..",
     "stop after this number of non-finite steps in a row"},
    MOERT_COMPUTE_OPTIONS(compute_choice, "all other GEMMs but the router's"),
    MOERT_MEMORY_OPTIONS(memory_choice, most_memory),
    {"seed", MOERT_OPTION_UINT, &trainer.seed, "1", "0..9007199254740992", "of weights and data"},
    {"ep", MOERT_OPTION_UINT, &ep, "0", "0..1000000",
     "ranks that share one set of experts; 0 = all"},
    {"replicas", MOERT_OPTION_CHOICE, &replicas, "summed", MOERT_REPLICA_WORDS,
     "with --ep: how the sets of experts work together. Summed: each adds up its own gradients, "
     "which are then summed. Exact: all add to the same sums, with the bits of one set on CPUs"},
    {"skip-steps", MOERT_OPTION_STRING, &skip_steps, NULL, NULL,
     "A:B leaves out the data of the steps from A on and before B, which then change nothing; "
     "several with commas between them"},
    {.help = "Held-out loss, output, checkpoints"},
    {"eval-every", MOERT_OPTION_UINT, &trainer.eval_every, "0", "0..",
     "steps between held-out losses; 0 = none"},
    {"eval-sequences", MOERT_OPTION_UINT, &trainer.eval_sequences, "32", "1..1000000",
     "sequences of the held-out loss"},
    {"out", MOERT_OPTION_STRING, &trainer.out, NULL, NULL,
     "directory for metrics.jsonl, run.json, checkpoints/ and model/"},
    {"metrics", MOERT_OPTION_STRING, &trainer.metrics, NULL, NULL,
     "JSON lines, one a step; default OUT/metrics.jsonl"},
    {"tensorboard", MOERT_OPTION_FLAG, &trainer.tensorboard, NULL, NULL,
     "also write the metrics as TensorBoard's events in OUT"},
    {"watch", MOERT_OPTION_FLAG, &trainer.watch, NULL, NULL,
     "the metrics also have norms of each layer's gradients and activations, the routers' "
     "entropies, dead experts, and the model's FLOP/s, also as a part of the devices' peak (MFU)"},
    {"peak-tflops", MOERT_OPTION_FLOAT, &peak_tflops, "0", "0..",
     "with --watch: the peak of a rank's device in TFLOP/s, for the MFU; 0 = measured: a GEMM in "
     "bf16 if the model has such, else multiply-adds in f32"},
    {"save-every", MOERT_OPTION_UINT, &trainer.save_every, "0", "0..",
     "steps between checkpoints; 0 = none"},
    {"save-dir", MOERT_OPTION_STRING, &trainer.save_dir, NULL, NULL,
     "directory for the checkpoints, such as one on a faster file system; default OUT/checkpoints"},
    {"save-dtype", MOERT_OPTION_CHOICE, &save_dtype, "f32", "f32|bf16",
     "of the weights in OUT/model, rounded to nearest; checkpoints keep all bits"},
    {"fuse-experts", MOERT_OPTION_FLAG, &fuse_experts, NULL, NULL,
     "OUT/model has the experts of a layer in two tensors, as transformers 5 holds them in memory"},
    {"model-file-mb", MOERT_OPTION_UINT, &model_file_mb, "0", "0..1000000000",
     "split the model's weights into files of at most this number of MB, with an index; 0 = one "
     "file"},
    {"keep-last", MOERT_OPTION_UINT, &trainer.keep.last, "3", "1..1000000",
     "newest checkpoints kept"},
    {"keep-every", MOERT_OPTION_UINT, &trainer.keep.every, "0", "0..",
     "also keep the checkpoints of steps that are multiples of this; 0 = none"},
    {"save-beside", MOERT_OPTION_CHOICE, &save_mode, "off", MOERT_SAVE_WORDS,
     "write checkpoints beside training, from a copy in host memory; one that is due before the "
     "previous one is done waits for it, or is skipped"},
    {"save-rate", MOERT_OPTION_FLOAT, &save_rate, "0", "0..",
     "MB/s that all ranks together write beside training; 0 = no limit"},
    {"save-last", MOERT_OPTION_FLAG, &trainer.save_last, "1", NULL,
     "a checkpoint after the last step, from which a longer run can go on"},
    {"overwrite", MOERT_OPTION_FLAG, &overwrites, NULL, NULL,
     "replace the model and the checkpoints of an older run in OUT"},
    {"resume", MOERT_OPTION_STRING, &resume, NULL, NULL,
     "a checkpoint; auto: the newest of OUT that is whole, if any; must: the same, and it is an "
     "error if there is none"},
    {"replay", MOERT_OPTION_STRING, &replay_steps, NULL, NULL,
     "STEP[:COUNT] computes these steps of the run in OUT again, with the same options, from its "
     "last checkpoint before them or from step 0, and writes their metrics to "
     "OUT/replay-STEP.jsonl; with --save-gradients also the gradients of the last of them"},
    {"checksums", MOERT_OPTION_FLAG, &trainer.checksums, "1", NULL,
     "compare what --model and --resume read with its checksums"},
    {"verify", MOERT_OPTION_UINT, &trainer.verify_every, "0", "0..",
     "steps after which ranks repeat a part of each other's work, on other devices, and compare "
     "the bits; 0 = none. A rank that computes wrongly is named, and nothing of the step is saved"},
    {"on-mismatch", MOERT_OPTION_CHOICE, &on_mismatch, "end", "end|back",
     "what follows wrong bits: the end, or going on from the last checkpoint, once for each step"},
    {"log-every", MOERT_OPTION_UINT, &trainer.log_every, "1", "0..",
     "steps between lines on the console; 0 = none"},
    {"profile", MOERT_OPTION_FLAG, &trainer.profile, NULL, NULL,
     "at the end show where the steps' time went, also in OUT/profile.json; record each rank's "
     "times, waits, bytes and experts' rows for moert-report OUT"},
    {"trace", MOERT_OPTION_STRING, &trainer.trace, NULL, NULL,
     "file for a trace of five steps, from the third on, for chrome://tracing: what each rank's "
     "device did, and when the rank waited for messages"},
    {"sample", MOERT_OPTION_UINT, &sample_bytes, "0", "0..100000",
     "bytes of text to generate at the end"},
    {"prompt", MOERT_OPTION_STRING, &prompt, "The ", NULL, "beginning of that text"},
    {"temperature", MOERT_OPTION_FLOAT, &temperature, "0.7", "0.01..100", "of the sampling"},
    {"save-gradients", MOERT_OPTION_STRING, &gradients_path, NULL, NULL,
     "only compute the gradients of the first step and write them to this safetensors file"},
    {"save-logits", MOERT_OPTION_STRING, &logits_path, NULL, NULL,
     "only compute the logits of the first batch and write them to this safetensors file"},
};
enum { OPTIONS = MOERT_COUNT(options) };

static char *default_metrics, *record;
static int word_count;
static char **command;

static bool replays(void) {
    return replay_steps != NULL;
}

/* Whether the program only computes the gradients or logits of the first step. */
static bool trains_not(void) {
    return !replays() && (gradients_path != NULL || logits_path != NULL);
}

/* Whether the weights are those of --model. */
static bool reads_weights(void) {
    return model_path != NULL && !random_weights;
}

/* Reads the options that name steps, and chooses the file of the metrics. */
static moert_status check_steps(void) {
    default_metrics = NULL;
    trainer.left_out = (moert_step_ranges){0};
    trainer.replay = (moert_step_range){0};
    if (skip_steps != NULL)
        MOERT_TRY(moert_step_ranges_read(skip_steps, &trainer.left_out));
    if (replays() && logits_path != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--replay and --save-logits do not go together");
    if (replays())
        MOERT_TRY(moert_step_range_read(replay_steps, &trainer.replay));
    if (trainer.out == NULL || (trainer.metrics != NULL && !replays()))
        return MOERT_OK;
    MOERT_TRY(replays() ? moert_text_path(&default_metrics, "%s/replay-%08llu.jsonl", trainer.out,
                                          (unsigned long long)trainer.replay.first)
                        : moert_text_path(&default_metrics, "%s/metrics.jsonl", trainer.out));
    trainer.metrics = default_metrics;
    return MOERT_OK;
}

/* The options beside those of the schedule and the data that change the results of a run. */
static const char *const lasting[] = {
    "optimizer", "weight-decay", "decay-all", "beta1",         "beta2",
    "epsilon",   "momentum",     "grad-clip", "aux-coef",      "aux-form",
    "z-coef",    "bias-rate",    "precision", "dense",         "dispatch",
    "combine",   "moments",      "gradients", "micro-batches", "balanced-routing"};

static bool lasts(const char *line) {
    const char *name = line + strspn(line, "no "); /* "no --flag" */
    for (size_t i = 0; i < MOERT_COUNT(lasting); i++) {
        const size_t length = strlen(lasting[i]);
        if (strncmp(name, "--", 2) == 0 && strncmp(name + 2, lasting[i], length) == 0 &&
            (name[2 + length] == ' ' || name[2 + length] == '\0'))
            return true;
    }
    return false;
}

/* trainer.settings = the lasting options with their values, and of a schedule that depends on it,
 * the number of steps. */
static moert_status note_settings(void) {
    static char settings[MOERT_SETTINGS_BYTES];
    moert_text_stream all;
    size_t used = 0;
    MOERT_TRY(moert_text_open("the options", &all));
    moert_options_print(options, OPTIONS, all.file);
    MOERT_TRY(moert_text_close(&all));
    settings[0] = '\0';
    for (const char *line = all.text; line < all.text + all.bytes; line += strlen(line) + 1)
        if (lasts(line) && used < sizeof settings) {
            const bool given = line[0] == '-'; /* otherwise it is "no --name" */
            used += (size_t)snprintf(settings + used, sizeof settings - used, "%s%s\n",
                                     line + (given ? 0 : 3), given ? "" : " none");
        }
    if (trainer.schedule.kind != MOERT_SCHEDULE_CONSTANT && used < sizeof settings)
        snprintf(settings + used, sizeof settings - used, "--steps %zu\n", trainer.steps);
    free(all.text);
    trainer.settings = settings;
    return MOERT_OK;
}

/* Refuses options of the optimizer that was not chosen. */
static moert_status check_optimizer(int argc, char **argv) {
    const char *const of_adamw = moert_options_given(options, OPTIONS, argc, argv,
                                                     &trainer.optimizer.beta1, 3 * sizeof(double));
    const char *const of_sgd = moert_options_given(options, OPTIONS, argc, argv,
                                                   &trainer.optimizer.momentum, sizeof(double));
    const bool sgd = memory_choice.optimizer == MOERT_OPTIMIZER_SGD;
    const char *const other = sgd ? of_adamw : of_sgd;
    return other == NULL ? MOERT_OK
                         : MOERT_FAIL(ERROR_USAGE, "--%s goes with --optimizer %s, not with %s",
                                      other, moert_optimizers[!sgd].name,
                                      moert_optimizers[memory_choice.optimizer].name);
}

static moert_status check(int argc, char **argv) {
    const char *size = moert_options_given(options, OPTIONS, argc, argv, &sizes, sizeof sizes);
    if (model_path != NULL && size != NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--%s is for a new model; the config.json of --model gives the sizes",
                          size);
    has_vocabulary = moert_options_given(options, OPTIONS, argc, argv, &sizes.vocabulary,
                                         sizeof sizes.vocabulary) != NULL;
    trainer.resume = resume == NULL                ? MOERT_RESUME_NONE
                     : strcmp(resume, "auto") == 0 ? MOERT_RESUME_AUTO
                     : strcmp(resume, "must") == 0 ? MOERT_RESUME_MUST
                                                   : MOERT_RESUME_PATH;
    trainer.checkpoint = resume;
    trainer.replay_gradients = replays() ? gradients_path : NULL;
    trainer.schedule.kind = (int)schedule_kind;
    trainer.save_mode = (moert_save_mode)save_mode;
    trainer.save_bytes_per_s = 1e6 * save_rate;
    trainer.goes_back = on_mismatch == 1;
    trainer.peak_flops = 1e12 * peak_tflops;
    trainer.losses.aux_form = (moert_aux_form)aux_form;
    if (split_weights != NULL &&
        moert_options_given(options, OPTIONS, argc, argv, &held_out, sizeof held_out) != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--split and --held-out both divide the data; give one");
    MOERT_TRY(split_weights != NULL ? moert_split_read(split_weights, &split)
                                    : moert_split_hold_out(held_out, &split));
    if (random_weights && model_path == NULL)
        return MOERT_FAIL(ERROR_USAGE,
                          "--random-weights needs --model, whose config.json it takes");
    if (token_bits != 16 && token_bits != 32)
        return MOERT_FAIL(ERROR_USAGE, "--token-bits %zu: expected 16 or 32", token_bits);
    most_bytes = 0;
    if (most_memory != NULL)
        MOERT_TRY(moert_text_get_bytes(most_memory, "--memory", &most_bytes));
    if (sample_bytes > 0 && prompt[0] == '\0')
        return MOERT_FAIL(ERROR_USAGE, "--sample needs a --prompt of at least one byte");
    if (overwrites && resume != NULL)
        return MOERT_FAIL(ERROR_USAGE, "--resume goes on with the run that --overwrite replaces; "
                                       "give one");
    if (trains_not() && trainer.resume != MOERT_RESUME_NONE && trainer.resume != MOERT_RESUME_AUTO)
        return MOERT_FAIL(ERROR_USAGE, "--save-logits and --save-gradients need --model (a "
                                       "checkpoint directory works); --resume does not apply");
    word_count = argc;
    command = argv;
    MOERT_TRY(check_optimizer(argc, argv));
    return check_steps();
}

/* The run replaces OUT/model at the end. Refuses an OUT/model that is the --model of this run, that
 * is not a directory, or that is of an older run, unless this one goes on with it or may overwrite
 * it. */
static moert_status check_out(void) {
    mode_t there;
    if (trainer.out == NULL || replays() || trains_not())
        return MOERT_OK;
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/model", trainer.out));
    const bool same = model_path != NULL && moert_same_file(model_path, path);
    const moert_status status = moert_file_mode(path, true, &there);
    free(path);
    MOERT_TRY(status);
    if (there != 0 && !S_ISDIR(there))
        return MOERT_FAIL(ERROR_USAGE,
                          "--out %s: model in it, where the result goes, is not a directory",
                          trainer.out);
    if (there != 0 && !same && resume == NULL && !overwrites)
        return MOERT_FAIL(ERROR_USAGE,
                          "--out %s has the model of an older run, which would be lost; give "
                          "another directory, --overwrite to replace it, or --resume auto to go on",
                          trainer.out);
    return same ? MOERT_FAIL(ERROR_USAGE,
                             "--model %s is where --out %s has its result, which would replace "
                             "it; give another --out",
                             model_path, trainer.out)
                : MOERT_OK;
}

/* Opens the data. Options that were not given (batch, length, steps) get the values that the data
 * suggest. Not collective. */
static moert_status open_data(moert_train_data *data) {
    MOERT_TRY(check_out());
    const moert_train_data_options sources = {&data_paths, token_file, (unsigned)token_bits, split};
    MOERT_TRY(moert_train_data_open(&sources, data));
    moert_data_info info = moert_data_describe(data->data);
    if (trainer.batch == 0)
        trainer.batch = info.batch > 0 ? info.batch : 16;
    if (trainer.length == 0)
        trainer.length = info.length > 0 ? info.length : 128;
    if (trainer.steps == SIZE_MAX)
        trainer.steps = info.steps > 0 ? info.steps : 100;
    enum { AUTO, EPOCHS };
    return order == EPOCHS || (order == AUTO && info.documents)
               ? moert_data_order_epochs(data->data, trainer.seed, trainer.length)
               : MOERT_OK;
}

/* Checks that the tokens of the data are the model's. */
static moert_status check_tokens(const moert_data_info *info, size_t vocabulary) {
    if (info->vocabulary_made > vocabulary)
        return MOERT_FAIL(ERROR_MISMATCH,
                          "the data have tokens of a tokenizer with a vocabulary of %zu, above the "
                          "model's %zu; tokenize them by the model's own tokenizer",
                          info->vocabulary_made, vocabulary);
    if (info->text && vocabulary != 256 && !takes_bytes)
        return MOERT_FAIL(
            ERROR_USAGE,
            "--data is text, and the model's vocabulary is %zu, not the 256 bytes; "
            "make tokens of it by launch/tokenize --tokenizer %s --out NAME, and give "
            "--data NAME; or give --bytes if bytes are meant",
            vocabulary, model_path != NULL ? model_path : "DIR");
    return MOERT_OK;
}

/* Reads or makes the model's config; not collective. */
static moert_status take_config(moert_data *data, moert_model_config *config) {
    int32_t end;
    const moert_data_info info = moert_data_describe(data);
    sizes.max_positions = trainer.length;
    sizes.end_token = info.end_made;
    if (!has_vocabulary && info.vocabulary_made > 0)
        sizes.vocabulary = info.vocabulary_made;
    MOERT_TRY(model_path != NULL ? moert_model_config_read(model_path, config)
                                 : moert_config_from_sizes(&sizes, config));
    moert_program_compute(&compute_choice, config);
    config->memory = memory_choice;
    config->balanced_routing = balanced_routing;
    if (reads_weights())
        MOERT_TRY(moert_model_config_check_tied(model_path, config, &untied));
    if (isnan(trainer.bias_rate))
        trainer.bias_rate = config->correction_bias && model_path == NULL ? 1e-3 : 0.0;
    MOERT_TRY(check_tokens(&info, config->vocabulary));
    MOERT_TRY(moert_data_check_vocabulary(data, config->vocabulary));
    MOERT_TRY(moert_config_document_end(document_end, model_path, config, &end));
    moert_data_end_documents(data, end, document_end == NULL);
    if (sample_bytes > 0 && config->vocabulary != 256)
        return MOERT_FAIL(ERROR_USAGE,
                          "--sample writes bytes; the vocabulary of this model is %zu, not 256",
                          config->vocabulary);
    trainer.config_text = config->text;
    return note_settings();
}

static moert_status show_sample(moert_context *context, moert_model *model) {
    static char text[SAMPLE_LIMIT + 1];
    if (sample_bytes == 0)
        return MOERT_OK;
    const moert_sampling how = {sample_bytes, trainer.length, temperature, trainer.seed};
    MOERT_TRY(moert_sample_text(model, &how, prompt, text));
    for (char *c = text; *c != '\0'; c++)
        if ((unsigned char)*c < 32 && *c != '\n' && *c != '\t')
            *c = '?';
    moert_program_say(context, "\nsample: %s%s\n\n", prompt, text);
    return MOERT_OK;
}

/* Writes a sample and the model in Hugging Face form, and prints the paths of a run's files. */
static moert_status finish(moert_context *context, moert_model *model) {
    MOERT_TRY(show_sample(context, model));
    if (trainer.metrics != NULL)
        moert_program_say(context, "metrics %s\n", trainer.metrics);
    if (trainer.out == NULL)
        return MOERT_OK;
    const moert_export how = {.config_text = trainer.config_text,
                              .type = save_dtype == 1 ? MOERT_FILE_BF16 : MOERT_FILE_F32,
                              .file_bytes = 1000000 * model_file_mb,
                              .from = model_path};
    char *path;
    MOERT_TRY(moert_text_path(&path, "%s/model", trainer.out));
    moert_model_join_experts(model, fuse_experts);
    const moert_status status = moert_model_save(model, &how, path);
    if (status == MOERT_OK)
        moert_program_say(context, "model   %s\n", path);
    free(path);
    return status;
}

/* Loads or initializes the weights; `manifest` is that of --model, or NULL. */
static moert_status make_weights(moert_comm *world, moert_model *model, moert_manifest *manifest) {
    if (!reads_weights())
        return moert_comm_agree(world, moert_model_initialize(model, trainer.seed));
    return moert_checksums_finish(world, manifest, moert_model_load(model, model_path, manifest));
}

/* Gives each rank room for experts that move. */
static moert_status make_slots(const moert_context *context, moert_model_config *config) {
    const size_t experts = config->router.experts;
    size_t group;
    MOERT_TRY(moert_mesh_group(moert_context_size(context), ep, &group));
    if (trainer.rebalance_every > 0 && group > 1)
        config->expert_slots = moert_min(moert_ceil_div(experts, group) + spare_slots, experts);
    return MOERT_OK;
}

static moert_status train(moert_context *context, moert_mesh *mesh,
                          const moert_model_config *config, const moert_data *data,
                          const moert_train_memory *memory, moert_manifest *manifest) {
    moert_model *model;
    bool interrupted = false;
    const int32_t end = moert_data_describe(data).end, made = moert_data_describe(data).end_made;
    MOERT_TRY(moert_model_create(mesh, config, &model));
    moert_status status = MOERT_OK;
    MOERT_TRY_OR(done, make_weights(moert_context_comm(context), model, manifest));
    moert_program_say(context, "moert-train: %zu ranks, %s, exchange %s, bf16 sums %s\n",
                      moert_context_size(context), moert_device_name(moert_context_device(context)),
                      moert_mesh_engine(mesh),
                      moert_gemm_bf16_order(moert_context_device(context)));
    moert_train_say_fit(context, memory);
    if (end >= 0)
        moert_program_say(
            context, "%s end with token %d%s\n",
            document_end == NULL ? "documents of raw token files" : "documents", (int)end,
            document_end == NULL ? ", the model's eos_token_id (--document-end)" : "");
    if (untied)
        moert_program_say(context,
                          "config.json of %s ties the embeddings, but lm_head.weight has values of "
                          "its own, which count, as in transformers\n",
                          model_path);
    if (made >= 0 && config->end_token >= 0 && made != config->end_token)
        moert_program_say(context,
                          "the dataset's texts end with token %d; the model's eos_token_id is %d\n",
                          (int)made, (int)config->end_token);
    moert_train_data_say(context, data, trainer.steps * trainer.batch);
    if (trainer.out == NULL && !trains_not() && trainer.steps > 0)
        moert_program_say(context, "without --out, nothing is saved\n");
    if (config->prediction_layers > 0)
        moert_program_say(context, "%s has %zu multi-token-prediction layers, which are left out\n",
                          model_path, config->prediction_layers);
    if (logits_path != NULL)
        MOERT_TRY_OR(done, moert_train_logits(model, data, &trainer, logits_path));
    if (gradients_path != NULL && !replays())
        MOERT_TRY_OR(done, moert_train_gradients(model, data, &trainer, gradients_path));
    if (trains_not())
        goto done;
    MOERT_TRY_OR(done, moert_train(model, data, &trainer, &interrupted));
    MOERT_TRY_OR(done, moert_train_say_memory(context, model, memory));
    if (replays())
        moert_program_say(context, "replay  %s%s\n", trainer.metrics,
                          interrupted ? ", stopped by a signal" : "");
    else if (interrupted)
        moert_program_say(context, "stopped by a signal; %s\n",
                          trainer.out != NULL ? "continue with --resume auto"
                                              : "without --out nothing is saved");
    else
        status = finish(context, model);
done:
    moert_model_destroy(model);
    return status;
}

/* Removes the checkpoints of an older run. */
static moert_status remove_checkpoints(const char *directory) {
    uint64_t *steps;
    size_t count;
    moert_status status = moert_checkpoint_list(directory, &steps, &count);
    for (size_t i = 0; status == MOERT_OK && i < count; i++) {
        char *path;
        status = moert_checkpoint_path(directory, steps[i], &path);
        if (status == MOERT_OK)
            status = moert_remove_tree(path);
        free(path);
    }
    free(steps);
    return status;
}

/* Locks the directories that the run writes to, on rank 0, and empties them if it may overwrite
 * them. That of the checkpoints has a lock of its own: it may be the --save-dir of another job. */
static moert_status lock_directories(const moert_context *context, moert_lock *locks[2]) {
    const bool writes = trainer.out != NULL && !replays() && !trains_not();
    if (!writes || moert_context_rank(context) != 0)
        return MOERT_OK;
    MOERT_TRY(moert_lock_take(trainer.out, &locks[0]));
    if (trainer.save_dir != NULL && moert_same_file(trainer.save_dir, trainer.out))
        return MOERT_FAIL(ERROR_USAGE, "--save-dir %s is --out itself; give another directory",
                          trainer.save_dir);
    char *saves;
    MOERT_TRY(trainer.save_dir != NULL ? moert_text_path(&saves, "%s", trainer.save_dir)
                                       : moert_text_path(&saves, "%s/checkpoints", trainer.out));
    moert_status status = moert_lock_take(saves, &locks[1]);
    if (status == MOERT_OK && overwrites)
        status = remove_checkpoints(saves);
    free(saves);
    return status;
}

static moert_status run(moert_context *context) {
    moert_comm *world = moert_context_comm(context);
    moert_model_config config = {0};
    moert_train_data data = {0};
    moert_mesh *mesh = NULL;
    moert_lock *locks[2] = {NULL, NULL};
    moert_manifest *manifest = NULL;
    moert_train_memory memory = {.places = NULL};
    moert_status status;
    MOERT_TRY_OR(done, moert_comm_agree(world, open_data(&data)));
    if (reads_weights() && trainer.checksums)
        MOERT_TRY_OR(done, moert_checksums_begin(world, model_path, &manifest));
    MOERT_TRY_OR(done, moert_comm_agree(world, take_config(data.data, &config)));
    MOERT_TRY_OR(done, moert_data_compare(data.data, world));
    MOERT_TRY_OR(done, moert_config_compare(world, config.text));
    MOERT_TRY_OR(done, (replicas == MOERT_REPLICAS_EXACT ? moert_mesh_create_exact
                                                         : moert_mesh_create)(context, ep, &mesh));
    MOERT_TRY_OR(done, make_slots(context, &config));
    if (!trains_not())
        MOERT_TRY_OR(done, moert_train_fit(context, mesh, &trainer, most_bytes, &config, &memory));
    MOERT_TRY_OR(done, moert_comm_agree(world, lock_directories(context, locks)));
    MOERT_TRY_OR(done, moert_comm_agree(world, moert_train_record(options, OPTIONS, word_count,
                                                                  command, &record)));
    trainer.record = record;
    status = train(context, mesh, &config, data.data, &memory, manifest);
done:
    moert_manifest_free(manifest);
    moert_lock_release(locks[1]);
    moert_lock_release(locks[0]);
    moert_mesh_destroy(mesh);
    moert_train_data_close(&data);
    moert_model_config_free(&config);
    MOERT_FREE(memory.places, data_paths.words, default_metrics, record);
    record = NULL;
    return status;
}

const moert_program moert_train_program =
    MOERT_PROGRAM_OF("[mpirun -n R] moert-train --data FILE|DIR... [--out DIR] [OPTION...]",
                     "Trains a Mixture-of-Experts language model; each rank owns a part of the "
                     "experts. The batch is global: the\n"
                     "same options give the same digits on 1, 2 and 4 ranks.",
                     check);
MOERT_MAIN(moert_train_program)

/* moert-train: trains a Mixture-of-Experts language model, on any number of ranks. */
#include <string.h>

#include "base/files.h"
#include "base/memory.h"
#include "base/text.h"
#include "tools/common/program.h"
#include "tools/train/run.h"
#include "train/run_file.h"

static moert_train_options o;

static const moert_option options[] = {
    {.help = "Most used"},
    {"data", MOERT_OPTION_LIST, &o.data_paths, NULL, "PATH...",
     "files and directories of text (symbolic links are skipped), or one Megatron dataset, "
     "NAME.bin with NAME.idx; or a blend of such sources: 0.7 A 0.3 B, or a file NAME.json with "
     "{\"A\": 0.7, \"B\": 0.3}"},
    {"model", MOERT_OPTION_STRING, &o.model_path, NULL, "DIR",
     "directory with config.json and safetensors files"},
    {"out", MOERT_OPTION_STRING, &o.trainer.out, NULL, "DIR",
     "directory for metrics.jsonl, run.json, checkpoints/ and model/"},
    {"steps", MOERT_OPTION_UINT, &o.trainer.steps, NULL, "0..",
     "optimizer steps; default: as many as the token file has, else 100"},
    {"batch", MOERT_OPTION_UINT, &o.trainer.batch.largest, "0", "0..1000000",
     "sequences per step, over all ranks; 0 = as in the token file, else 16"},
    {"length", MOERT_OPTION_UINT, &o.trainer.length, "0", "0..1000000",
     "tokens per sequence; 0 = as in the token file, else 128, or the most that --model takes if "
     "that is less"},
    {"lr", MOERT_OPTION_FLOAT, &o.trainer.schedule.rate, "1e-3", "0..", "learning rate"},
    {"eval-every", MOERT_OPTION_UINT, &o.trainer.eval_every, "0", "0..",
     "steps between held-out losses; 0 = none"},
    {"save-every", MOERT_OPTION_UINT, &o.trainer.save_every, "0", "0..",
     "steps between checkpoints; 0 = none"},
    {"resume", MOERT_OPTION_STRING, &o.resume, NULL, "auto|must|DIR",
     "a checkpoint; auto: the newest of OUT that is whole, if any; must: the same, and it is an "
     "error if there is none. Options that are not given are those of OUT/run.json"},
    {.help = "Model: that of --model, or new with the given sizes"},
    {"random-weights", MOERT_OPTION_FLAG, &o.random_weights, NULL, NULL,
     "with --model: take its config.json alone, and new weights by --seed"},
    {"form", MOERT_OPTION_CHOICE, &o.sizes.form, "mixtral", MOERT_FORM_WORDS,
     "form of a new model"},
    {"vocabulary", MOERT_OPTION_UINT, &o.sizes.vocabulary, "256", "1..1000000",
     "number of tokens; 256 for text, whose bytes are the tokens; default with a dataset by "
     "launch/tokenize: its tokenizer's"},
    {"hidden", MOERT_OPTION_UINT, &o.sizes.hidden, "128", "2..65536", "hidden size"},
    {"intermediate", MOERT_OPTION_UINT, &o.sizes.intermediate, "256", "1..262144",
     "size of an expert"},
    {"layers", MOERT_OPTION_UINT, &o.sizes.layers, "2", "1..1000", "layers"},
    {"heads", MOERT_OPTION_UINT, &o.sizes.heads, "4", "1..1024", "attention heads"},
    {"kv-heads", MOERT_OPTION_UINT, &o.sizes.kv_heads, "0", "0..1024",
     "heads of keys and values; 0 = the number of --heads"},
    {"head-size", MOERT_OPTION_UINT, &o.sizes.head_size, "0", "0..512", "0 = hidden / heads"},
    {"experts", MOERT_OPTION_UINT, &o.sizes.experts, "8", "1..1024", "experts per layer"},
    {"topk", MOERT_OPTION_UINT, &o.sizes.topk, "2", "1..1024", "experts per token"},
    {.help = "Data"},
    {"tokens", MOERT_OPTION_STRING, &o.token_file, NULL, "FILE",
     "token file: raw integers, or a .safetensors file with tokens[steps,B,S+1], replayed batch by "
     "batch, and optionally with targets[steps,B,S], of which -1 are masked"},
    {"bytes", MOERT_OPTION_FLAG, &o.takes_bytes, NULL, NULL,
     "take the bytes of text as tokens although the vocabulary is not 256"},
    {"token-bits", MOERT_OPTION_UINT, &o.token_bits, "16", "16..32",
     "width of raw tokens, 16 or 32"},
    {"document-end", MOERT_OPTION_STRING, &o.document_end, NULL, "TOKEN",
     "token (its number, or its text in --model's tokenizer.json) that ends a document inside a "
     "sequence, or none. Attention does not cross its end, and positions start anew. Megatron "
     "datasets do not need it; default for raw token files: eos_token_id of --model"},
    {"order", MOERT_OPTION_CHOICE, &o.order, "auto", "auto|epochs|random",
     "epochs use every token of every document once; random: each sequence starts anywhere; auto: "
     "epochs of a Megatron dataset, else random"},
    {"held-out", MOERT_OPTION_FLOAT, &o.held_out, "0.05", "0..0.9",
     "part of the data kept for the held-out loss"},
    {"split", MOERT_OPTION_STRING, &o.split_weights, NULL, "A,B,C",
     "weights of training, held-out and test data, such as 969,30,1, instead of --held-out; test "
     "data give a loss at the end"},
    {.help = "Training"},
    {"micro-batches", MOERT_OPTION_UINT, &o.trainer.micro_batches, "1", "1..1000000",
     "parts of a batch, computed one after another; each has a load-balancing loss of its own"},
    {"batch-ramp", MOERT_OPTION_STRING, &o.batch_ramp, NULL, "START:INCREMENT:STEPS",
     "the run starts with START sequences per step, and every STEPS steps the batch grows by "
     "INCREMENT sequences, until it is --batch"},
    {"lr-schedule", MOERT_OPTION_CHOICE, &o.schedule_kind, "cosine", "constant|cosine|linear",
     "learning rate after the warm-up"},
    {"lr-floor", MOERT_OPTION_FLOAT, &o.trainer.schedule.floor_fraction, "0.1", "0..1",
     "final learning rate of cosine and linear, as a fraction of --lr"},
    {"lr-decay", MOERT_OPTION_UINT, &o.trainer.schedule.decay, "0", "0..",
     "the rate falls only in these last steps (warm-up, stable, decay); 0 = from the warm-up on"},
    {"warmup", MOERT_OPTION_UINT, &o.trainer.schedule.warmup, "0", "0..",
     "steps of linear warm-up"},
    {"weight-decay", MOERT_OPTION_FLOAT, &o.trainer.optimizer.decay, "0.1", "0..", "on matrices"},
    {"decay-all", MOERT_OPTION_FLAG, &o.trainer.optimizer.decay_all, NULL, NULL,
     "also decay norms"},
    {"beta1", MOERT_OPTION_FLOAT, &o.trainer.optimizer.beta1, "0.9", "0..0.9999999", "of AdamW"},
    {"beta2", MOERT_OPTION_FLOAT, &o.trainer.optimizer.beta2, "0.95", "0..0.9999999", "of AdamW"},
    {"epsilon", MOERT_OPTION_FLOAT, &o.trainer.optimizer.epsilon, "1e-8", "1e-30..", "of AdamW"},
    {"momentum", MOERT_OPTION_FLOAT, &o.trainer.optimizer.momentum, "0.9", "0..0.9999999",
     "of --optimizer sgd"},
    {"grad-clip", MOERT_OPTION_FLOAT, &o.trainer.optimizer.clip, "1", "0..",
     "largest gradient norm; 0 = no clipping"},
    {"aux-coef", MOERT_OPTION_FLOAT, &o.trainer.losses.aux_coefficient, "0.01", "0..",
     "coefficient of the load-balancing loss"},
    {"aux-form", MOERT_OPTION_CHOICE, &o.aux_form, "hugging-face", MOERT_AUX_WORDS,
     "load balance of all layers together, of each layer, or of each sequence in each layer"},
    {"z-coef", MOERT_OPTION_FLOAT, &o.trainer.losses.z_coefficient, "0", "0..",
     "coefficient of the router's z-loss"},
    {"bias-rate", MOERT_OPTION_FLOAT, &o.trainer.bias_rate, NULL, "0..",
     "change of each correction bias per step, for routers that have them; 0 = fixed. Default: "
     "1e-3 for a new model, 0 for --model"},
    {"rebalance", MOERT_OPTION_UINT, &o.trainer.rebalance_every, "0", "0..",
     "steps after which experts move between ranks, so that the ranks get equal numbers of rows; "
     "no bit of the results changes; 0 = none"},
    {"spare-slots", MOERT_OPTION_UINT, &o.spare_slots, "1", "0..1024",
     "with --rebalance: number of experts of a layer for which a rank has room beyond its share"},
    {"clones", MOERT_OPTION_FLAG, &o.trainer.clones, NULL, NULL,
     "with --rebalance: several ranks share the rows of an expert that has more than a rank's "
     "share, in their spare slots. On CPUs no bit of the results changes"},
    {"balanced-routing", MOERT_OPTION_FLAG, &o.balanced_routing, NULL, NULL,
     "only to compare speeds: hashes of the routers' logits choose the experts, so that these get "
     "nearly equal numbers of rows; the model does not learn to route"},
    {"max-skipped", MOERT_OPTION_UINT, &o.trainer.max_skipped, "10", "1..",
     "stop after this number of non-finite steps in a row"},
    MOERT_COMPUTE_OPTIONS(o.compute, "all other GEMMs but the router's"),
    MOERT_MEMORY_OPTIONS(o.memory, o.most_memory),
    {"seed", MOERT_OPTION_UINT, &o.trainer.seed, "1", "0..9007199254740992",
     "seed of weights and data"},
    {"ep", MOERT_OPTION_UINT, &o.ep, "0", "0..1000000",
     "ranks among which one set of experts is divided; 0 = all"},
    {"replicas", MOERT_OPTION_CHOICE, &o.replicas, "summed", MOERT_REPLICA_WORDS,
     "with --ep: how the sets of experts work together. Summed: each adds up its own gradients, "
     "which are then summed. Exact: all add to the same sums, with the bits of one set on CPUs"},
    {"skip-steps", MOERT_OPTION_STRING, &o.skip_steps, NULL, "A:B,...",
     "A:B leaves out the data of the steps from A on and before B, which then change nothing; "
     "several with commas between them"},
    {.help = "Held-out loss, output, checkpoints"},
    {"eval-sequences", MOERT_OPTION_UINT, &o.trainer.eval_sequences, "32", "1..1000000",
     "sequences of the held-out loss"},
    {"early-stop", MOERT_OPTION_UINT, &o.trainer.early_stop, "0", "0..",
     "end the run once this number of held-out losses in a row were not the lowest; 0 = never"},
    {"metrics", MOERT_OPTION_STRING, &o.trainer.metrics, NULL, "FILE",
     "JSON lines, one a step; default OUT/metrics.jsonl"},
    {"tensorboard", MOERT_OPTION_FLAG, &o.trainer.tensorboard, NULL, NULL,
     "also write the metrics as TensorBoard's events in OUT"},
    {"watch", MOERT_OPTION_FLAG, &o.trainer.watch, NULL, NULL,
     "the metrics also have norms of each layer's gradients and activations, the routers' "
     "entropies, dead experts, and the model's FLOP/s, also as a part of the devices' peak (MFU)"},
    {"peak-tflops", MOERT_OPTION_FLOAT, &o.peak_tflops, "0", "0..",
     "with --watch: the peak of a rank's device in TFLOP/s, for the MFU; 0 = measured: a GEMM in "
     "bf16 if the model has such, else multiply-adds in f32"},
    {"save-dir", MOERT_OPTION_STRING, &o.trainer.save_dir, NULL, "DIR",
     "directory for the checkpoints, such as one on a faster file system; default OUT/checkpoints"},
    {"save-dtype", MOERT_OPTION_CHOICE, &o.save_dtype, "f32", "f32|bf16",
     "dtype of the weights in OUT/model, rounded to nearest; checkpoints keep all bits"},
    {"fuse-experts", MOERT_OPTION_FLAG, &o.fuse_experts, NULL, NULL,
     "OUT/model has the experts of a layer in two tensors, as transformers 5 holds them in memory"},
    {"model-file-mb", MOERT_OPTION_UINT, &o.model_file_mb, "0", "0..1000000000",
     "split the model's weights into files of at most this number of MB, with an index; 0 = one "
     "file"},
    {"keep-last", MOERT_OPTION_UINT, &o.trainer.keep.last, "3", "1..1000000",
     "newest checkpoints kept"},
    {"keep-every", MOERT_OPTION_UINT, &o.trainer.keep.every, "0", "0..",
     "also keep the checkpoints of steps that are multiples of this; 0 = none"},
    {"keep-best", MOERT_OPTION_FLAG, &o.trainer.keep_best, NULL, NULL,
     "also save a checkpoint whenever the held-out loss is the lowest so far, and keep the last "
     "such checkpoint"},
    {"save-beside", MOERT_OPTION_CHOICE, &o.save_mode, "off", MOERT_SAVE_WORDS,
     "write checkpoints beside training, from a copy in host memory; one that is due before the "
     "previous one is done waits for it, or is skipped"},
    {"save-rate", MOERT_OPTION_FLOAT, &o.save_rate, "0", "0..",
     "MB/s that all ranks together write beside training; 0 = no limit"},
    {"save-last", MOERT_OPTION_FLAG, &o.trainer.save_last, "1", NULL,
     "a checkpoint after the last step, from which a longer run can go on"},
    {"overwrite", MOERT_OPTION_FLAG, &o.overwrites, NULL, NULL,
     "replace the model and the checkpoints of an older run in OUT"},
    {"replay", MOERT_OPTION_STRING, &o.replay_steps, NULL, "STEP[:COUNT]",
     "STEP[:COUNT] computes these steps of the run in OUT again, from its "
     "last checkpoint before them or from step 0, and writes their metrics to "
     "OUT/replay-STEP.jsonl; with --save-gradients also the gradients of the last of them"},
    {"checksums", MOERT_OPTION_FLAG, &o.trainer.checksums, "1", NULL,
     "compare the files that --model and --resume read with their checksums"},
    {"verify", MOERT_OPTION_UINT, &o.trainer.verify_every, "0", "0..",
     "steps after which ranks repeat each other's work, on other devices, and compare the bits; "
     "0 = none. A rank that computes wrongly is named, and nothing of the step is saved"},
    {"verify-share", MOERT_OPTION_FLOAT, &o.trainer.verify_share, "0", "0..0.9",
     "instead of --verify: the part of the time that this may take"},
    {"on-mismatch", MOERT_OPTION_CHOICE, &o.on_mismatch, "end", MOERT_MISMATCH_WORDS,
     "what follows wrong bits: the end, going on from the last checkpoint, once for each step, or "
     "a warning"},
    {"log-every", MOERT_OPTION_UINT, &o.trainer.log_every, "1", "0..",
     "steps between lines on the console; 0 = none"},
    {"profile", MOERT_OPTION_FLAG, &o.trainer.profile, NULL, NULL,
     "at the end show where the steps' time went, also in OUT/profile.json; record each rank's "
     "times, waits, bytes and experts' rows for moert-report OUT"},
    {"trace", MOERT_OPTION_STRING, &o.trainer.trace, NULL, "FILE",
     "file for a trace of five steps, from the third on, for chrome://tracing: what each rank's "
     "device did, and when the rank waited for messages"},
    {"sample", MOERT_OPTION_UINT, &o.sample_bytes, "0", "0..100000",
     "bytes of text to generate at the end"},
    {"prompt", MOERT_OPTION_STRING, &o.prompt, "The ", "TEXT", "beginning of that text"},
    {"temperature", MOERT_OPTION_FLOAT, &o.temperature, "0.7", "0.01..100", "of the sample"},
    {"save-gradients", MOERT_OPTION_STRING, &o.gradients_path, NULL, "FILE",
     "only compute the gradients of the first step and write them to this safetensors file"},
    {"save-logits", MOERT_OPTION_STRING, &o.logits_path, NULL, "FILE",
     "only compute the logits of the first batch and write them to this safetensors file"},
};

static moert_status check(const moert_command *command) {
    o.command = *command;
    return moert_train_check(&o);
}

/* A resumed or replayed run takes the options of its first part. */
static moert_status option_file(char **path) {
    bool there = false;
    if (o.trainer.out == NULL || (o.resume == NULL && o.replay_steps == NULL))
        return MOERT_OK;
    MOERT_TRY(moert_file_exists(&there, "%s/" MOERT_RUN_FILE, o.trainer.out));
    return there ? moert_text_path(path, "%s/" MOERT_RUN_FILE, o.trainer.out) : MOERT_OK;
}

/* Whether a run does what the record of another run says. Only a single start of a run does what
 * `once` lists. The sizes of a new model do not go with a --model that is an argument. */
static bool repeats(const char *name) {
    static const char *const once[] = {"overwrite", "resume", "replay", "save-gradients",
                                       "save-logits"};
    for (size_t i = 0; i < MOERT_COUNT(once); i++)
        if (strcmp(name, once[i]) == 0)
            return false;
    for (size_t i = 0; i < MOERT_COUNT(options) && o.model_path != NULL; i++)
        if (options[i].name != NULL && strcmp(options[i].name, name) == 0) {
            const uintptr_t target = (uintptr_t)options[i].target, sizes = (uintptr_t)&o.sizes;
            return target < sizes || target >= sizes + sizeof o.sizes;
        }
    return true;
}

static moert_status run(moert_context *context) {
    return moert_train_run(context, &o);
}

const moert_program moert_train_program = {
    .synopsis = "[mpirun -n R] moert-train --data PATH... [--out DIR] [OPTION...]",
    .about =
        "Trains a Mixture-of-Experts language model; each rank owns a part of the experts. The "
        "batch is global: the\n"
        "same options give the same digits on 1, 2 and 4 ranks.",
    .options = options,
    .option_count = MOERT_COUNT(options),
    .check = check,
    .run = run,
    .option_file = option_file,
    .repeats = repeats,
};
MOERT_MAIN(moert_train_program)

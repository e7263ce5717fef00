// run: np=1,2,4
/*
 * Refusals of programs, in this process: each row is a command line that a program must refuse on
 * all ranks with the right exit code, one message and no file. tests/e2e/bad_input.sh has one row
 * of each kind end to end.
 */
#include <unistd.h>

#include "base/log.h"
#include "support/files.h"
#include "support/program.h"

static const struct {
    const char *name;
    const moert_program *program;
} programs[] = {{"layer ", &moert_layer_program},
                {"op ", &moert_op_program},
                {"train ", &moert_train_program},
                {"tune ", &moert_tune_program}};

/* ---- rows ---- */

#define LAYER  "tests/golden/layer/mixtral-a"
#define MODEL  "tests/golden/model/mixtral-tiny"
#define LAST   "$DIR/run/checkpoints/step-00000002"
#define SIZES  "--hidden 32 --intermediate 32 --heads 2 --batch 4 --length 32 --steps 2"
#define TEXT   "--data LICENSE " SIZES
#define GO_ON  TEXT " --steps 3 --out $OUT/run"
#define REPLAY "--model " MODEL " --tokens " MODEL "/expected.safetensors"
#define IO     "--input " LAYER "/input.safetensors --output $OUT/y.safetensors"
#define EDGE   "--input tests/golden/quant/mxfp8-e4m3-rceil-edge-40x96.safetensors"
#define MATRIX EDGE " --output $OUT/q.safetensors"

/* A command line, the exit code (2 for bad usage, else 1), and a regular expression of the message. */
typedef struct refusal {
    int code;
    const char *words, *message;
} refusal;

static size_t warnings;
static void count_warnings(void *user, int level, const char *line) {
    (void)user, (void)line;
    warnings += level <= MOERT_LOG_WARN;
}

/* Runs a command line whose first word is a program. */
static moert_status run_line(const char *line) {
    const moert_program *program = NULL;
    const char *words = strchr(line, ' ') + 1;
    for (size_t i = 0; i < MOERT_COUNT(programs); i++)
        program = strncmp(line, programs[i].name, (size_t)(words - line)) == 0 ? programs[i].program
                                                                               : program;
    const moert_status status = run_program(program, words);
    set_variable("MOERT_BACKEND", NULL); /* of --backend */
    return status;
}

static void refuse_one(const refusal *row) {
    assert_true(run_shell("rm -rf $OUT && mkdir $OUT"));
    warnings = 0;
    const moert_status status = run_line(row->words);
    const int code = status == MOERT_OK ? 0 : status == MOERT_ERROR_USAGE ? 2 : 1;
    const bool right =
        code == row->code && matches(moert_last_error(), row->message) && warnings == 0;
    if (!right)
        print_error("%s\n  gives %d, %zu warnings and '%s'\n  not %d and '%s'\n", row->words, code,
                    warnings, moert_last_error(), row->code, row->message);
    ASSERT_ON_ALL(right);
    ASSERT_ON_ALL(test_rank > 0 || rmdir(getenv("OUT")) == 0); /* it is empty */
}

static void refuse(const refusal *rows, size_t count) {
    for (size_t i = 0; i < count; i++)
        refuse_one(&rows[i]);
}

TEST(test_a_run_that_is_not_refused_leaves_checkpoints) {
    ASSERT_OK_ON_ALL(run_program(&moert_train_program, TEXT " --save-every 1 --out $DIR/run"));
    assert_true(run_shell("tests/support/broken_files.sh $DIR"));
}

/* Rows for these numbers of ranks only. */
static const struct {
    const char *ranks;
    refusal row;
} of_ranks[] = {
    {"2 4", {2, "op quantize " MATRIX, "moert-op runs on one rank, not on [24]"}},
    {"2 4",
     {2, "train " TEXT " --experts 1 --topk 1 --out $OUT/run",
      "1 experts .* (2|4) ranks; use fewer ranks"}},
    {"4", {2, "train " TEXT " --experts 3", "3 experts .* 4 ranks"}},
    {"2",
     {2, "train " TEXT " --ep 1 --replicas exact --rebalance 2",
      "--rebalance does not move experts that have exact replicas"}},
    {"2",
     {2, "train " TEXT " --ep 1 --replicas exact --verify 2",
      "--verify does not check .*; leave out --replicas or --verify"}},
    {"1",
     {1, "layer --model " LAYER " --input $DIR/nan.safetensors --output $OUT/y.safetensors",
      "token 41 has non-finite"}},
    {"2",
     {1, "layer --model " LAYER " --input $DIR/nan.safetensors --output $OUT/y.safetensors",
      "rank 1 .*: token 17 has non-finite"}},
    {"4",
     {1, "layer --model " LAYER " --input $DIR/nan.safetensors --output $OUT/y.safetensors",
      "rank 3 .*: token 5 has non-finite"}},
    {"1", {1, "tune --out $DIR/pipe --shapes 1x1x8x8", "pipe: is a pipe"}},
};

TEST(test_refusals_depend_on_the_number_of_ranks) {
    for (size_t i = 0; i < MOERT_COUNT(of_ranks); i++)
        if (strstr(of_ranks[i].ranks, titled("%zu", test_ranks)) != NULL)
            refuse_one(&of_ranks[i].row);
}

static const refusal options[] = {
    {2, "train " TEXT " --memory 1x", "--memory 1x: expected a number of bytes"},
    {2, "train " TEXT " --memory 0", "--memory 0: expected a number of bytes"},
    {2, "train " TEXT " --memory -1G", "--memory -1G: expected a number of bytes"},
    {2, "train " TEXT " --memory 1e30", "--memory 1e30: expected a number of bytes"},
    {2, "train " TEXT " --imbalance 0.5", "--imbalance"},
    {2, "train " TEXT " --stepz 3", "unknown option --stepz; did you mean --steps[?]"},
    {2, "train " TEXT " --held-out 0.95", "--held-out 0[.]95: expected a number 0[.][.]0[.]9"},
    {2, "train " TEXT " --hidden x", "--hidden x: expected an integer 2[.][.]65536"},
    {2, "train " TEXT " --lr", "--lr needs a value"},
    {2, "train " TEXT " --dense mxfp8", "--dense mxfp8: expected f32[|]bf16"},
    {2, "train --steps 1", "--data .* or by --tokens"},
    {2, "layer --model " LAYER, "--model, --input and --output are needed"},
    {2, "train " TEXT " --topk 9 --out $OUT/run", "--topk 9 exceeds --experts 8"},
    {2, "train --data LICENSE --model " MODEL " --hidden 64 --out $OUT/run",
     "--hidden is for a new model; the config.json of --model gives the sizes"},
    {2, "train --data 0.7 LICENSE 0.3",
     "--data 0.7 [.][.][.]: a blend has a weight before each path"},
    {2, "train --data '0.5 LICENSE -1 docs'", "weight '-1': expected a number above 0"},
    {2, "train --data '0.5 LICENSE 1e3 docs'", "weight '1e3': expected a number above 0"},
    {2, "train --data '0.5 LICENSE x docs'", "weight 'x': expected a number above 0"},
    {2, "train --data '0.5 LICENSE 1.2.3 docs'", "weight '1.2.3': expected a number above 0"},
    {2, "train --data '0.5 LICENSE . docs'", "weight '.': expected a number above 0"},
    {2, "train --data 0.5 LICENSE 0.5 LICENSE", "a blend names LICENSE twice"},
    {1, "train --data $DIR/half.json --out $OUT/run",
     "half.json: \"LICENSE\" has no weight; a blend is "},
    {1, "train --data $DIR/twice.json",
     "twice.json: the blend is not valid JSON: duplicate object key"},
    {1, "train --data $DIR/none.json", "none.json"},
    {2, "train " TEXT " --split 9,1",
     "split '9,1': expected the weights of training, held-out and test data"},
    {2, "train " TEXT " --split 9,1,0 --held-out 0.1",
     "--split and --held-out both divide the data"},
    {2, "train " TEXT " --split 9,0,1 --eval-every 1", "--eval-every needs held-out data"},
    {2, "train --data 1.234567 LICENSE 7.654321 docs",
     "the weights of the sources need .* give rounder weights"},
    {2, "train --form=mixtral --data LICENSE --model " MODEL, "--form is for a new model"},
    {1, "train " TEXT " --vocabulary 1000000 --hidden 65536 --memory 100T",
     "embedding, head and final norm: a buffer of .* exceeds the largest allocation"},
    {1, "train " TEXT " --hidden 512 --intermediate 262144 --experts 1024 --out $OUT/run",
     "would take .*TiB of memory, above the .* more ranks, shorter sequences or a smaller model"},
    {1, "train " TEXT " --hidden 512 --intermediate 262144 --experts 1024 --memory 100T",
     "first projection of all experts of a rank in one layer: a buffer of .* exceeds"},
    {2, "train " TEXT " --bias-rate 1e-3 --out $OUT/run",
     "bias-rate 0.001: the routers of this model have no correction bias"},
    {2, "train " TEXT " --micro-batches 3 --out $OUT/run", "batch of 4 .* into 3 micro-batches"},
    {2, "train " TEXT " --sample 5 --prompt ''", "--prompt of at least one byte"},
    {2, "train " TEXT " --save-every 1", "--save-every .*--out"},
    {2, "train " TEXT " --save-dir there", "--save-dir there .*--out"},
    {2, "train " TEXT " --save-beside no", "--save-beside no: expected off[|]wait[|]skip"},
    {2, "train " TEXT " --resume auto", "--resume auto .*--out"},
    {2, "train " TEXT " --tensorboard", "--tensorboard .*--out"},
    {2, "train " TEXT " --skip-steps 3:2", "--skip-steps 3:2: expected A:B"},
    {2, "train " TEXT " --replay 1:x --out $OUT/run", "--replay 1:x: expected STEP or STEP:COUNT"},
    {2, "train " TEXT " --replay 1", "--replay needs the run directory; give --out"},
    {2, "train " TEXT " --steps 1 --replay 5:3 --out $OUT/run",
     "--replay of step 7: the run has 1 steps"},
    {2, "train " TEXT " --steps 9 --replay 5 --out $OUT/run --resume there",
     "--replay finds its checkpoint in --out; leave out --resume"},
    {2, "train " TEXT " --steps 9 --replay 5 --out $OUT/run --profile", "--profile would replace"},
    {2, "train " TEXT " --steps 9 --replay 5 --out $OUT/run --save-logits there",
     "--replay and --save-logits"},
    {2, "train " TEXT " --watch --peak-tflops -1", "--peak-tflops -1: expected a number"},
    {2, "train " TEXT " --ep 3 --out $OUT/run", "[124] ranks .* groups of 3 .*must divide"},
    {2, "train " TEXT " --ep 1 --replicas maybe", "--replicas maybe: expected summed[|]exact"},
    {2, "train " TEXT " --clones", "--clones needs --rebalance N"},
};

TEST(test_wrong_options_are_refused) {
    refuse(options, MOERT_COUNT(options));
}

static const refusal models[] = {
    {1, "layer --model $DIR/nosuch " IO, "/nosuch: .*No such file"},
    {1, "layer --model $DIR/noconfig " IO, "noconfig/config[.]json: .*No such file"},
    {1, "layer --model $DIR/notjson " IO, "notjson/config[.]json: .*line 5"},
    {1, "layer --model $DIR/wordy " IO, "wordy/config[.]json: .*hidden_size"},
    {1, "layer --model $DIR/keyless " IO, "keyless/config[.]json: .*hidden_size"},
    {1, "layer --model $DIR/greedy " IO, "greedy/config[.]json: num_experts_per_tok is 9, .*8"},
    {1, "layer --model $DIR/strange " IO,
     "strange/config[.]json: model_type is 'llama'; supported are mixtral"},
    {1, "layer --model $DIR/awq " IO,
     "awq/config[.]json: quant_method of quantization_config is 'awq'; supported are fp8"},
    {1, "layer --model $DIR/dropout " IO,
     "dropout/config[.]json: resid_pdrop has a value other than 0"},
    {1, "train --model $DIR/unknown --data LICENSE --out $OUT/run",
     "the key frobnicate of a mixtral config"},
    {1, "train --model $DIR/dynamic --data LICENSE --out $OUT/run",
     "rope_type of rope_parameters is 'dynamic'"},
    {1, "layer --model $DIR/noweights " IO, "noweights: .*model[.]safetensors"},
    {1, "layer --model $DIR/cut0 " IO, "cut0/model[.]safetensors"},
    {1, "layer --model $DIR/cut7 " IO, "cut7/model[.]safetensors"},
    {1, "layer --model $DIR/cut100 " IO, "cut100/model[.]safetensors"},
    {1, "layer --model $DIR/cut300000 " IO, "cut300000/model[.]safetensors"},
    {1, "layer --model $DIR/header " IO, "header/model[.]safetensors: .*header"},
    {1, "layer --model $DIR/absent " IO, "has no tensor '.*experts[.]3[.]w2[.]weight'.*nearest"},
    {1, "layer --model $DIR/shape " IO,
     "shape/model[.]safetensors: .*[[]96, ?64], not [[]64, ?96]"},
    {1, "train --model $DIR/normless --data LICENSE --out $OUT/run",
     "normless: .*'model[.]norm[.]weight'"},
    {1, "layer --model $DIR/shards " IO, "model-00002-of-00002[.]safetensors: .*No such file"},
    {1, "layer --model " LAYER " --layer 7 " IO, "layer 7 is not a MoE layer"},
    {1, "train --model $DIR/infinite --data LICENSE --length 64 --batch 4 --out $OUT/run",
     "infinite/model[.]safetensors: element 0 of tensor '.*' is nan; values must be finite"},
};

TEST(test_broken_models_are_refused) {
    refuse(models, MOERT_COUNT(models));
}

static const refusal data[] = {
    {1, "train --data $DIR/nosuch --out $OUT/run", "/nosuch: No such file"},
    {1, "train --data $DIR/empty --out $OUT/run", "no text .*/empty"},
    {1, "train --data $DIR/none --out $OUT/run", "no text in 0 files .*/none"},
    {1, "train " SIZES " --data $DIR/short --out $OUT/run", "60 tokens .*sequences of 32"},
    {1, "train --tokens $DIR/high.bin --out $OUT/run",
     "high[.]bin, position 0: token 257 .*vocabulary of 256"},
    {1, "train --tokens $DIR/odd.bin --out $OUT/run", "odd[.]bin: 3 bytes .*16-bit"},
    {1, "train --tokens " LAYER "/input.safetensors --out $OUT/run",
     "input[.]safetensors .*no tensor tokens[[]"},
    {1, "train --tokens $DIR/flat.safetensors --out $OUT/run",
     "flat[.]safetensors .*no tensor tokens[[]steps,B,S[+]1]"},
    {1, "train --hidden 32 --intermediate 32 --heads 2 --tokens $DIR/none.safetensors",
     "the batch of step 0: none of its 2 tokens counts"},
    {1, "train --tokens $DIR/target.safetensors --out $OUT/run",
     "target[.]safetensors, position 1: target 512 .*vocabulary of 256"},
    {1, "train --tokens $DIR/thin.safetensors --out $OUT/run",
     "thin[.]safetensors: the tensor targets must be [[]1,1,2]"},
    {2, "train " TEXT " --document-end 256 --out $OUT/run",
     "--document-end 256: expected a token below the vocabulary of 256"},
    {2, "train " TEXT " --document-end 1x --out $OUT/run", "--document-end 1x: expected"},
    {1, "train " REPLAY " --steps 21 --out $OUT/run", "21 steps, .*20 batches"},
    {1, "train " REPLAY " --steps 1 --length 32 --out $OUT/run", "sequences of 48 tokens, not 32"},
    {1, "train " REPLAY " --steps 1 --batch 4 --out $OUT/run", "batches of 2 sequences, not 4"},
    {1, "layer --model " LAYER " --input $DIR/wide.safetensors --output $OUT/y.safetensors",
     "wide[.]safetensors: x .*64"},
    {1, "layer --model " LAYER " --input $DIR/transposed.safetensors --output $OUT/y.safetensors",
     "transposed[.]safetensors: dy .*64"},
    {1, "layer --model " LAYER " --input $DIR/rows.safetensors --output $OUT/y.safetensors",
     "rows[.]safetensors: x has 2 rows, dy 1"},
};

TEST(test_broken_data_are_refused) {
    refuse(data, MOERT_COUNT(data));
}

static const refusal checkpoints[] = {
    {1, "train " GO_ON " --resume $DIR/nosuch", "nosuch/state[.]json: .*No such file"},
    {1, "train " GO_ON " --resume $DIR/moments", "moments/optimizer[.]safetensors"},
    {1, "train " GO_ON " --resume $DIR/weights", "weights/model[.]safetensors"},
    {1, "train " GO_ON " --resume $DIR/stateless", "stateless/state[.]json: '[a-z_]+' is missing"},
    {1, "train " GO_ON " --resume $DIR/brace", "brace/state[.]json: it is not valid JSON"},
    {1, "train " GO_ON " --hidden 64 --resume " LAST, "step-00000002.*shape .*32.*64"},
    {1, "train " GO_ON " --seed 2 --resume " LAST,
     "step-00000002 was made with seed 1, this run has 2"},
    {1, "train " GO_ON " --batch 8 --resume " LAST,
     "step-00000002 was made with batch 4, this run has 8"},
    {1, "train " GO_ON " --heads 8 --resume " LAST,
     "step-00000002 was made with num_attention_heads [0-9]+, this run has 8"},
    {1, "train " GO_ON " --layers 1 --resume " LAST,
     "step-00000002 was made with num_hidden_layers 2, this run has 1"},
    {1, "train " GO_ON " --topk 1 --resume " LAST,
     "step-00000002 was made with num_experts_per_tok 2, this run has 1"},
    {2, "train " TEXT " --out $DIR/run",
     "step-00000002 is of an older run; --resume auto goes on with it"},
    {2, "train " TEXT " --out $DIR/run --resume $DIR/elsewhere/step-00000001",
     "run/checkpoints/step-00000002 is of an older run"},
    {2, "train " TEXT " --save-logits $OUT/logits.safetensors --resume " LAST,
     "--resume does not apply"},
    {2, "train --model $DIR/run/model --data LICENSE --length 64 --out $DIR/run",
     "--model .* is where --out .* has its result"},
    {2, "train --model $DIR/run/model --data LICENSE --length 1024 --batch 4 --out $OUT/run",
     "sequences of 1024 tokens exceed .*max_position_embeddings"},
};

TEST(test_broken_and_foreign_checkpoints_are_refused) {
    refuse(checkpoints, MOERT_COUNT(checkpoints));
}

static const refusal paths[] = {
    {1, "train --data $DIR/pipe --out $OUT/run", "pipe is neither a regular file"},
    {1, "train --tokens $DIR/pipe --out $OUT/run", "pipe is neither a regular file"},
    {1, "layer --model " LAYER " --input $DIR/pipe --output $OUT/y.safetensors",
     "pipe: is a pipe; only regular files"},
    {1, "layer --model $DIR/pipe-config " IO, "config[.]json: is a pipe"},
    {1, "layer --model $DIR/pipe-model " IO, "model[.]safetensors: is a pipe"},
    {1, "train " GO_ON " --resume $DIR/pipe-state", "state[.]json: is a pipe"},
    {1, "train " GO_ON " --resume $DIR/pipe-optimizer", "optimizer[.]safetensors: is a pipe"},
    {1, "layer --model " LAYER " --input /dev/zero --output $OUT/y.safetensors",
     "/dev/zero: is a device; only regular files"},
    {1, "train " TEXT " --out /proc/run", "/proc/run: .*cannot be created"},
    {1, "train " TEXT " --out $DIR/empty/run", "/empty: .*File exists"},
    {1, "train " TEXT " --metrics $DIR/nosuch/m.jsonl", "nosuch/m[.]jsonl: No such file"},
    {1,
     "layer --model " LAYER " --input " LAYER
     "/input.safetensors --output $DIR/nosuch/y.safetensors",
     "nosuch/y[.]safetensors.*No such file"},
    {1, "layer --model " LAYER " --input " LAYER "/input.safetensors --output $DIR/directory",
     "/directory: .*directory"},
    {1, "train " TEXT " --save-gradients $DIR/directory", "/directory: .*directory"},
    {1, "train " TEXT " --save-logits $DIR/directory", "/directory: .*directory"},
    {1, "train " TEXT " --save-logits $DIR/link", "/link: is not a regular file"},
};

TEST(test_pipes_and_paths_that_cannot_be_written_are_refused) {
    refuse(paths, MOERT_COUNT(paths));
}

static const refusal operations[] = {
    {1, "op quantize --input $DIR/ends.safetensors --output $OUT/q.safetensors",
     "group 0 of 1 ends at 2, not in [[]0, 1]"},
    {2, "op quantify --input a --output $OUT/q.safetensors",
     "no operation 'quantify'; --help lists them"},
    {2, "op quantize", "quantize: --input and --output are needed"},
    {2, "op quantize " MATRIX " --format fp3",
     "--format fp3: expected mxfp8[|]mxfp8-e4m3[|].*[|]nvfp4[|]fp8-block[|]fp8-1x128[|]"},
    {2, "op quantize " MATRIX " --hadamard", "--hadamard goes with --format nvfp4 --axis column"},
    {2, "op quantize " MATRIX " --rounding stochastic",
     "--rounding bridge and stochastic go with elements of 4 bits"},
    {2, "op quantize " MATRIX " --format mxfp4 --seed 3", "--seed goes with --rounding stochastic"},
    {2, "op quantize " MATRIX " --format nvfp4 --scale-rounding floor",
     "--scale-rounding goes with scales of mxfp8"},
    {2, "op quantize " MATRIX " --group-scales", "--group-scales goes with --format nvfp4"},
    {2, "op quantize " MATRIX " --transposed", "--transposed goes with --axis column"},
    {1, "op quantize " MATRIX " --name weight", "holds no tensor 'weight'"},
    {1, "op quantize " EDGE " --output $DIR/none", "/none.*: Is a directory"},
    {1, "op quantize " EDGE " --output $OUT/nosuch/q.safetensors",
     "/out/nosuch/q[.]safetensors.*No such file"},
    {2, "op quantize " MATRIX " --gate-runs 7", "48 columns are no multiple of the runs of 7"},
    {1, "op dequantize " MATRIX " --backend nvidia", "MOERT_BACKEND is nvidia, which takes GPUs"},
    {1, "op dequantize --input " LAYER "/input.safetensors --output $OUT/x.safetensors",
     "input[.]safetensors holds no tensor 'q'"},
    {1, "op dequantize " MATRIX " --axis column",
     "q[[]40,96] and scale[[]40,3] do not belong together"},
    {1, "op unswizzle " MATRIX " --lines 400 --width 3",
     "swizzled has 512 bytes; 400 lines of 3 scales make 2048"},
};

TEST(test_wrong_operations_are_refused) {
    if (test_ranks == 1)
        refuse(operations, MOERT_COUNT(operations));
}

/* ---- tensors of operations ---- */

#define GEMM "ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1"

/* An operation on a file that tests/tools/pack makes of these tensors. They replace those of a GLU
 * by name; -NAME omits one. */
static const struct {
    int code;
    const char *operation, *tensors, *message;
} operands[] = {
    {1, "grouped-gemm-glu", "-sfb", "broken[.]safetensors holds no tensor 'sfb'"},
    {1, "grouped-gemm-glu", "a:F32[64,64]:0",
     "tensor 'a' is F32, not F8_E4M3 or U8, .*moert-op quantize .*--format f32"},
    {1, "grouped-gemm-quant", "a:U8[64]:0", "tensor 'a' has 1 dimensions, not 2"},
    {1, "grouped-gemm-glu", "b:U8[3,64,64]:0",
     "tensor 'b' has the shape [[]3, ?64, ?64], not [[]2, ?64, ?64]"},
    {1, "grouped-gemm-quant", "b:U8[2,64,32]:0",
     "tensor 'b' has the shape [[]2, ?64, ?32], not [[]2, ?64, ?64]"},
    {1, "grouped-gemm-glu", "sfa:U8[256]:0",
     "tensor 'sfa' has 256 bytes; tiled scales [[]64,2] of mxfp8-e4m3 have 512"},
    {1, "grouped-gemm-glu --scales linear", "sfa:U8[64,2]:0",
     "tensor 'sfb' has 1024 bytes; linear scales [[]128,2] .* have 256"},
    {1, "grouped-gemm-glu", "padded_offsets:I32[2]:64,32",
     "tensor 'padded_offsets': group 1 of 2 ends at 32, not in [[]64, 64]"},
    {1, "grouped-gemm-quant", "padded_offsets:I32[2]:32,65",
     "'padded_offsets': group 1 of 2 ends at 65, not in [[]32, 64]"},
    {1, "grouped-gemm-glu", "padded_offsets:I32[2]:-1,64",
     "'padded_offsets': group 0 of 2 ends at -1, not in [[]0, 64]"},
    {1, "grouped-gemm-glu", "alpha:F32[3]:1", "tensor 'alpha' has the shape [[]3], not [[]2]"},
    {1, "grouped-gemm-glu", "prob:BF16[64]:1", "tensor 'prob' is BF16, not F32"},
    {1, "grouped-gemm-glu", "bias:F64[2,64]:0", "tensor 'bias' is F64, not F32, F16 or BF16$"},
    {1, "grouped-gemm-dglu", "", "holds no tensor 'c'"},
    {1, "grouped-gemm-wgrad --format f32",
     "offsets:I32[1]:4 a:F32[8,4]:1 b_t:F32[8,4]:1 global_scale_a:F32[1]:1",
     "holds no tensor 'global_scale_b'.*or neither"},
    {1, "grouped-gemm-wgrad --format f32",
     "offsets:I32[1]:4 a:F32[8,4]:1 b_t:F32[8,4]:1 global_scale_b:F32[1]:1",
     "holds no tensor 'global_scale_a'.*or neither"},
    {1, "grouped-gemm-wgrad --format f32 --accumulate",
     "offsets:I32[1]:4 a:F32[8,4]:1 b_t:F32[8,4]:1", "holds no tensor 'wgrad'"},
    {1, "grouped-gemm --permute y", "ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1",
     "holds no tensor 'gather'"},
    {1, "grouped-gemm --permute x --topk 2",
     "ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1 gather:I32[6]:0",
     "tensor 'x' has the shape [[]4, ?8], not [[]3, ?8]"},
    {1, "cast", "x:U8[4]:1", "tensor 'x' is U8, not f32[|].*--from"},
    {1, "quantize", "x:F32[0,8,32]:0", "tensor 'x' holds no matrix"},
    {1, "quantize", "x:F32[1,1,8,32]:0", "tensor 'x' has 4 dimensions, not 2 or 3"},
    {2, "quantize --axis column --transposed", "x:F32[2,8,32]:0",
     "--transposed goes with a tensor of two dimensions"},
    {1, "interleave", "x:F32[2,7]:1", "tensor 'x' has 7 columns of gate and up, not 2I"},
    {2, "grouped-gemm --y-transposed", GEMM,
     "--y-transposed is of an operand; --op makes this one the result"},
    {2, "grouped-gemm --x-axis row", GEMM, "--x-axis goes with a quantized format"},
    {2, "grouped-gemm --format fp8-block --weight-axis row", GEMM,
     "--weight-axis does not go with this format, whose blocks are 2d"},
    {2, "grouped-gemm --scales tiled", GEMM,
     "--scales goes with quantized operands; all are plain"},
    {2, "grouped-gemm --format fp8-block --scales tiled", GEMM, "--scales in tiles have one byte"},
    {2, "grouped-gemm --topk 2", GEMM, "--topk goes with --permute"},
    {2, "grouped-gemm --op wgrad --out-format mxfp8", GEMM " y:F32[4,8]:1",
     "--out-format is plain with --op wgrad"},
    {2, "grouped-gemm --out-format mxfp8 --accumulate", GEMM,
     "--accumulate goes with a plain result"},
    {2, "grouped-gemm --out-format mxfp8 --permute y", GEMM,
     "--permute does not scatter a quantized result"},
    {2, "grouped-gemm-glu --no-column", "", "--no-column goes with a quantized d"},
    {2, "grouped-gemm-glu --format fp8-block --b-major n", "",
     "--b-major n does not go with square blocks of b"},
    {2, "grouped-gemm-wgrad --format fp8-128x128", "",
     "--format has blocks along the tokens, not 2d"},
    {2, "grouped-gemm-wgrad --format f32 --scales linear", "",
     "--scales goes with quantized operands; all are plain"},
    {1, "grouped-gemm", GEMM " x_global:F32[1]:1", "tensor 'x_global' goes with --format nvfp4"},
    {1, "grouped-gemm", GEMM " norm:F32[1]:1", "tensor 'norm' goes with a quantized result"},
    {1, "grouped-gemm --out-format nvfp4", GEMM,
     "tensor 'norm' is needed, a factor of nvfp4 results: 2688 / "},
    {1, "grouped-gemm-glu --d-format nvfp4", "",
     "tensor 'norm_const' is needed, a factor of nvfp4 results: 2688 / "},
    {1, "grouped-gemm", GEMM " bias_scale:F32[4]:1",
     "tensor 'bias_scale' goes with a tensor 'bias'"},
    {1, "grouped-gemm", GEMM " prob:F32[4]:1 bias:F32[1,8]:1",
     "tensor 'prob' does not go with a tensor 'bias', whose factor is 'bias_scale'"},
};

TEST(test_operations_refuse_wrong_tensors) {
    static const char pack[] = "$(dirname $PROGRAM)/../../pack";
    static const char *const usual[] = {"padded_offsets:I32[2]:32,64", "a:U8[64,64]:0",
                                        "sfa:U8[512]:0", "b:U8[2,64,64]:0", "sfb:U8[2,512]:0"};
    for (size_t i = 0; test_ranks == 1 && i < MOERT_COUNT(operands); i++) {
        const char *given = titled(" %s", operands[i].tensors);
        char command[1024];
        int used = snprintf(command, sizeof command, "%s $DIR/broken.safetensors", pack);
        for (size_t u = 0; u < MOERT_COUNT(usual); u++) {
            const char *name = titled("%.*s", (int)strcspn(usual[u], ":"), usual[u]);
            if (strstr(given, titled(" %s:", name)) == NULL &&
                strstr(given, titled(" -%s", name)) == NULL)
                used += snprintf(command + used, sizeof command - (size_t)used, " %s", usual[u]);
        }
        if (given[1] != '-')
            snprintf(command + used, sizeof command - (size_t)used, "%s", given);
        assert_true(run_shell(command));
        refuse_one(
            &(refusal){operands[i].code,
                       titled("op %s --input $DIR/broken.safetensors --output $OUT/d.safetensors",
                              operands[i].operation),
                       operands[i].message});
    }
}

/* ---- the files ---- */

TEST(test_refused_runs_leave_no_checkpoint_and_no_temporary_file) {
    assert_int_equal(count_files(in_directory("run/checkpoints"), ""), 2);
    assert_true(run_shell("[ -z \"$(find $DIR -name \\*.tmp -o -name \\*.partial)\" ]"));
}

static int begin(void **state) {
    moert_log_set_sink(count_warnings, NULL);
    return open_context_and_shared_directory(state);
}

MPI_TESTS(begin, close_context_and_shared_directory)

#!/usr/bin/env bash
# run: check all
# Bad input ends every program at once, on any number of ranks. The status is 2 if the command line or a variable is wrong, else 1.
# One message names the object, its place and the value. No partly written file is left.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
export LC_ALL=C
export -n TEST_BUILD TEST_ALL # keep them out of the programs' environment
[ $MOERT_MPI = mpich ] || TEST_JOBS=6 # mpirun of Open MPI sleeps for two seconds when a program fails
work=$tmp # shared by all parts
mount=$work/mount
leave() {
    wait
    mountpoint -q "$mount" && umount "$mount"
    rm -rf "$work"
}
trap leave EXIT
layer=tests/golden/layer/mixtral-a model=tests/golden/model/mixtral-tiny
text=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --batch 4 --length 32 --steps 2)

# ---- running cases in parallel ----

# job RANKS DIR WORD...: runs [VARIABLE=VALUE...] layer|op|train ARGUMENT..., with OUT in the words replaced by DIR/out. One rank
# runs without mpirun, as in `alone` of tests/support/e2e.sh. $log gets all output and the status
job() {
    local ranks=$1 dir=$2 settings=() launch=() word
    shift 2
    if [ "$ranks" -eq 1 ]; then
        settings+=(OMPI_MCA_ess_singleton_isolated=1 "OMPI_MCA_orte_tmpdir_base=$dir" OMPI_MCA_pml=ob1)
    else
        launch=("${MOERT_MPIRUN[@]}" -n "$ranks")
    fi
    while [[ $1 == *=* ]]; do
        settings+=("$1")
        shift
    done
    local program=$bin/moert-$1 arguments=()
    shift
    for word in "$@"; do arguments+=("${word//OUT/$dir/out}"); done
    env "${settings[@]}" timeout -k 5 60 "${launch[@]}" "$program" "${arguments[@]}" \
        >"$dir/stdout" 2>"$dir/stderr"
    local status=$?
    sed -i 's/\x00//g' "$dir/stderr" # mpirun of Open MPI 5 writes NUL bytes
    { cat "$dir/stdout" "$dir/stderr" && echo "status $status"; } >"$log"
    return $status
}

judge() { # RANKS STATUS PATTERN WORD...
    local ranks=$1 expected=$2 pattern=$3 status ok=0
    shift 3
    mkdir "$tmp/out"
    job "$ranks" "$tmp" "$@"
    status=$?
    [ "$status" -eq "$expected" ] || ok=1
    [ "$(grep -c '^moert' "$tmp/stderr")" -eq 1 ] || ok=1
    grep -E '^moert-(layer|op|train|tune): ' "$tmp/stderr" | grep -Eq -- "$pattern" || ok=1
    [ -z "$(find "$tmp/out" -mindepth 1 | tee -a "$log")" ] || ok=1
    verdict $ok "status $expected, $ranks ranks: $*"
}

# bad RANKS STATUS PATTERN WORD...: one case for each number in RANKS
bad() {
    local ranks
    for ranks in $1; do part judge "$ranks" "${@:2}"; done
}

# ---- making broken files ----

copy() { # NAME FROM: copies a model, to be broken; prints the directory of the copy
    mkdir -p "$work/$1"
    cp "$2"/* "$work/$1"
    rm -f "$work/$1/manifest.json"
    echo "$work/$1"
}

config() { # NAME SED PATTERN: a case with a layer whose config.json is edited by SED
    sed -i "$2" "$(copy "$1" $layer)/config.json"
    bad "$both" 1 "$1/config\\.json: $3" layer --model "$work/$1" "${io[@]}"
}

# tensors FILE JSON [BYTE...]: writes a safetensors file whose header has fewer than 256 bytes
tensors() {
    local file=$1 json=$2
    printf "\\x$(printf %x ${#json})\\0\\0\\0\\0\\0\\0\\0%s" "$json" >"$file"
    [ $# -lt 3 ] || printf "${@:3}" >>"$file"
}

# ---- options and variables ----

both="1 2"
bad "1 2 4" 2 'unknown option --stepz; did you mean --steps\?' train "${text[@]}" --stepz 3
bad "$both" 2 '--held-out 0\.95: expected a number 0\.\.0\.9' train "${text[@]}" --held-out 0.95
bad 1 2 '--hidden x: expected an integer 2\.\.65536' train "${text[@]}" --hidden x
bad 1 2 '--lr needs a value' train "${text[@]}" --lr
bad 1 2 '--dense mxfp8: expected f32\|bf16' train "${text[@]}" --dense mxfp8
bad "$both" 2 '--data .* or by --tokens' train --steps 1
bad 1 2 '--model, --input and --output are needed' layer --model $layer
bad "$both" 2 '--topk 9 exceeds --experts 8' train "${text[@]}" --topk 9 --out OUT/run
bad "$both" 2 '--hidden is for a new model; the config.json of --model gives the sizes' train --data LICENSE --model $model --hidden 64 --out OUT/run
bad 1 2 '--data 0.7 \.\.\.: a blend has a weight before each path' train --data 0.7 LICENSE 0.3
bad 1 2 "weight '-1': expected a number above 0" train --data "0.5 LICENSE -1 docs"
for weight in 1e3 x 1.2.3 .; do bad 1 2 "weight '$weight': expected a number above 0" train --data "0.5 LICENSE $weight docs"; done
bad 1 2 'a blend names LICENSE twice' train --data 0.5 LICENSE 0.5 LICENSE
echo '{"LICENSE": "half"}' >"$tmp/half.json"
echo '{"docs": 0.5, "docs": 0.5}' >"$tmp/twice.json"
bad "$both" 1 'half.json: "LICENSE" has no weight; a blend is ' train --data "$tmp/half.json" --out OUT/run
bad 1 1 'twice.json: the blend is not valid JSON: duplicate object key' train --data "$tmp/twice.json"
bad 1 1 'none.json' train --data "$tmp/none.json"
bad 1 2 "split '9,1': expected the weights of training, held-out and test data" train "${text[@]}" --split 9,1
bad 1 2 '--split and --held-out both divide the data' train "${text[@]}" --split 9,1,0 --held-out 0.1
bad 1 2 '--eval-every needs held-out data' train "${text[@]}" --split 9,0,1 --eval-every 1
bad 1 2 'the weights of the sources need .* give rounder weights' train --data 1.234567 LICENSE 7.654321 docs
bad 1 2 '--form is for a new model' train --form=mixtral --data LICENSE --model $model
bad 1 1 'embedding, head and final norm: a buffer of .* exceeds the largest allocation' train "${text[@]}" --vocabulary 1000000 --hidden 65536 \
    --memory 100T
bad "$both" 1 'would take .*TiB of memory, above the .* more ranks, shorter sequences or a smaller model' train "${text[@]}" --hidden 512 \
    --intermediate 262144 --experts 1024 --out OUT/run
bad "$both" 1 'first projection of all experts of a rank in one layer: a buffer of .* exceeds' train "${text[@]}" --hidden 512 \
    --intermediate 262144 --experts 1024 --memory 100T
bad 1 2 'bias-rate 0.001: the routers of this model have no correction bias' train "${text[@]}" --bias-rate 1e-3 --out OUT/run
bad 1 2 'batch of 4 .* into 3 micro-batches' train "${text[@]}" --micro-batches 3 --out OUT/run
bad 1 2 '--prompt of at least one byte' train "${text[@]}" --sample 5 --prompt ''
bad "$both" 2 '--save-every .*--out' train "${text[@]}" --save-every 1
bad "$both" 2 '--save-dir there .*--out' train "${text[@]}" --save-dir there
bad "$both" 2 '--save-beside no: expected off\|wait\|skip' train "${text[@]}" --save-beside no
bad "$both" 2 '--resume auto .*--out' train "${text[@]}" --resume auto
bad "$both" 2 '--tensorboard .*--out' train "${text[@]}" --tensorboard
bad "$both" 2 '--skip-steps 3:2: expected A:B' train "${text[@]}" --skip-steps 3:2
bad "$both" 2 '--replay 1:x: expected STEP or STEP:COUNT' train "${text[@]}" --replay 1:x --out OUT/run
bad "$both" 2 '--replay needs the run directory; give --out' train "${text[@]}" --replay 1
bad "$both" 2 '--replay of step 7: the run has 1 steps' train "${text[@]}" --steps 1 --replay 5:3 --out OUT/run
bad 1 2 '--replay finds its checkpoint in --out; leave out --resume' train "${text[@]}" --steps 9 --replay 5 --out OUT/run --resume there
bad 1 2 '--profile would replace' train "${text[@]}" --steps 9 --replay 5 --out OUT/run --profile
bad 1 2 '--replay and --save-logits' train "${text[@]}" --steps 9 --replay 5 --out OUT/run --save-logits there
bad "$both" 2 '--peak-tflops -1: expected a number' train "${text[@]}" --watch --peak-tflops -1
bad "2 4" 2 '^moert-train: .*1 experts .* (2|4) ranks; use fewer ranks' train "${text[@]}" --experts 1 --topk 1 --out OUT/run
bad 4 2 '3 experts .* 4 ranks' train "${text[@]}" --experts 3
bad "$both" 2 '[12] ranks .* groups of 3 .*must divide' train "${text[@]}" --ep 3 --out OUT/run
bad "$both" 2 '--replicas maybe: expected summed\|exact' train "${text[@]}" --ep 1 --replicas maybe
bad 2 2 '--rebalance does not move experts that have exact replicas' train "${text[@]}" --ep 1 --replicas exact --rebalance 2
bad 2 2 '--verify does not check .*; leave out --replicas or --verify' train "${text[@]}" --ep 1 --replicas exact --verify 2
bad "$both" 2 '--clones needs --rebalance N' train "${text[@]}" --clones
bad "1 2 4" 2 'MOERT_EXCHANGE=bogus .*auto\|local\|window\|node\|staged' MOERT_EXCHANGE=bogus train "${text[@]}"
bad "$both" 2 'MOERT_BACKEND=bogus .*auto\|reference\|portable' MOERT_BACKEND=bogus train "${text[@]}"
bad 2 1 'MOERT_BACKEND is nvidia, which takes GPUs of compute capability 8\.0 and later, not' MOERT_BACKEND=nvidia train "${text[@]}"
bad "$both" 2 'MOERT_TIMEOUT_S=abc .*0-86400' MOERT_TIMEOUT_S=abc train "${text[@]}"
bad "$both" 2 'MOERT_DEVICE=nosuch matches no OpenCL device; there are: 0:0' MOERT_DEVICE=nosuch train "${text[@]}"
mkdir "$work/none"
bad "$both" 1 'no OpenCL platform .*OCL_ICD_VENDORS' "OCL_ICD_VENDORS=$work/none/" train "${text[@]}"
bad 2 1 'local exchange .* one rank, not 2' MOERT_EXCHANGE=local train "${text[@]}" --out OUT/run

# ---- models ----

io=(--input $layer/input.safetensors --output OUT/y.safetensors)
bad "1 2 4" 1 '/nosuch: .*No such file' layer --model "$work/nosuch" "${io[@]}"
rm "$(copy noconfig $layer)/config.json"
bad "$both" 1 'noconfig/config\.json: .*No such file' layer --model "$work/noconfig" "${io[@]}"
config notjson '5s/.*/ "bad" 3,/' '.*line 5'
config wordy 's/"hidden_size": 64/"hidden_size": "64"/' '.*hidden_size'
config keyless '/"hidden_size"/d' '.*hidden_size'
config greedy 's/"num_experts_per_tok": 2/"num_experts_per_tok": 9/' 'num_experts_per_tok is 9, .*8'
config strange 's/"model_type": "mixtral"/"model_type": "llama"/' "model_type is 'llama'; supported are mixtral"
config awq '1s/{/{"quantization_config": {"quant_method": "awq"},/' "quant_method of quantization_config is 'awq'; supported are fp8"
config dropout '1s/{/{"resid_pdrop": 0.1,/' 'resid_pdrop has a value other than 0'
sed -i '1s/{/{"frobnicate": 16,/' "$(copy unknown $model)/config.json"
bad "$both" 1 'the key frobnicate of a mixtral config' train --model "$work/unknown" "${text[@]:0:2}" --out OUT/run
sed -i 's/"default"/"dynamic"/' "$(copy dynamic $model)/config.json"
bad "$both" 1 "rope_type of rope_parameters is 'dynamic'" train --model "$work/dynamic" "${text[@]:0:2}" --out OUT/run

rm "$(copy noweights $layer)/model.safetensors"
bad "$both" 1 'noweights: .*model\.safetensors' layer --model "$work/noweights" "${io[@]}"
for bytes in 0 7 100 300000; do
    truncate -s $bytes "$(copy cut$bytes $layer)/model.safetensors"
    bad "$both" 1 "cut$bytes/model\\.safetensors" layer --model "$work/cut$bytes" "${io[@]}"
done
printf '\377\377\377\377' | dd of="$(copy header $layer)/model.safetensors" conv=notrunc status=none
bad "$both" 1 'header/model\.safetensors: .*header' layer --model "$work/header" "${io[@]}"
sed -i 's/experts.3.w2.weight/experts.3.w2.weighs/' "$(copy absent $layer)/model.safetensors"
bad "1 2 4" 1 "has no tensor '.*experts\\.3\\.w2\\.weight'.*nearest" layer --model "$work/absent" "${io[@]}"
sed -i 's/\[64,96\]/[96,64]/' "$(copy shape $layer)/model.safetensors"
bad "$both" 1 'shape/model\.safetensors: .*\[96, ?64\], not \[64, ?96\]' layer --model "$work/shape" "${io[@]}"
sed -i 's/model.norm.weight/model.norm.weighs/' "$(copy normless $model)/model.safetensors"
bad "$both" 1 "normless: .*'model\\.norm\\.weight'" train --model "$work/normless" "${text[@]:0:2}" --out OUT/run
rm "$(copy shards $layer)/model.safetensors"
echo '{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}' \
    >"$work/shards/model.safetensors.index.json"
bad "$both" 1 'model-00002-of-00002\.safetensors: .*No such file' layer --model "$work/shards" "${io[@]}"
bad 1 1 'layer 7 is not a MoE layer' layer --model $layer --layer 7 "${io[@]}"

# ---- operations ----

matrix=(op quantize --input tests/golden/quant/mxfp8-e4m3-rceil-edge-40x96.safetensors --output OUT/q.safetensors)
bad 1 2 "no operation 'quantify'; --help lists them" op quantify --input a --output OUT/q.safetensors
bad 1 2 'quantize: --input and --output are needed' op quantize
bad 2 2 'moert-op runs on one rank, not on 2' "${matrix[@]}"
bad 1 2 '--format fp3: expected mxfp8\|mxfp8-e4m3\|.*\|nvfp4\|fp8-block\|fp8-1x128\|' "${matrix[@]}" --format fp3
bad 1 2 '--hadamard goes with --format nvfp4 --axis column' "${matrix[@]}" --hadamard
bad 1 2 '--rounding bridge and stochastic go with elements of 4 bits' "${matrix[@]}" --rounding stochastic
bad 1 2 '--seed goes with --rounding stochastic' "${matrix[@]}" --format mxfp4 --seed 3
bad 1 2 '--scale-rounding goes with scales of mxfp8' "${matrix[@]}" --format nvfp4 --scale-rounding floor
bad 1 2 '--group-scales goes with --format nvfp4' "${matrix[@]}" --group-scales
bad 1 2 '--transposed goes with --axis column' "${matrix[@]}" --transposed
bad 1 1 "holds no tensor 'weight'" "${matrix[@]}" --name weight
bad 1 1 '/none.*: Is a directory' "${matrix[@]:0:4}" --output "$work/none"
bad 1 1 '/out/nosuch/q\.safetensors.*No such file' "${matrix[@]:0:5}" OUT/nosuch/q.safetensors
bad 1 2 '48 columns are no multiple of the runs of 7' "${matrix[@]}" --gate-runs 7
bad 1 1 'MOERT_BACKEND is nvidia, which takes GPUs' op dequantize "${matrix[@]:2}" --backend nvidia
bad 1 1 "input\\.safetensors holds no tensor 'q'" op dequantize --input $layer/input.safetensors --output OUT/x.safetensors
bad 1 1 'q\[40,96\] and scale\[40,3\] do not belong together' op dequantize "${matrix[@]:2}" --axis column
bad 1 1 'swizzled has 512 bytes; 400 lines of 3 scales make 2048' op unswizzle "${matrix[@]:2}" --lines 400 --width 3

# broken PATTERN OPERATION TENSOR...: a case with the tensors of grouped-gemm-glu. A TENSOR given replaces the one of its name, -NAME
# omits one. misused: the same with a wrong option, so with status 2
broken() { on_tensors 1 "$@"; }
misused() { on_tensors 2 "$@"; }
on_tensors() {
    local status=$1 pattern=$2 words=$3 path=$work/broken$e2e_parts.safetensors tensor mine=()
    for tensor in padded_offsets:I32[2]:32,64 a:U8[64,64]:0 sfa:U8[512]:0 b:U8[2,64,64]:0 sfb:U8[2,512]:0; do
        [[ " ${*:4}" == *" ${tensor%%:*}:"* || " ${*:4} " == *" -${tensor%%:*} "* ]] || mine+=("$tensor")
    done
    for tensor in "${@:4}"; do
        [[ $tensor == -* ]] || mine+=("$tensor")
    done
    "${TEST_BUILD:-build}/tests/pack" "$path" "${mine[@]}"
    # shellcheck disable=SC2086
    bad 1 "$status" "$pattern" op $words --input "$path" --output OUT/d.safetensors
}
broken "broken[0-9]+\\.safetensors holds no tensor 'sfb'" grouped-gemm-glu -sfb
broken "tensor 'a' is F32, not F8_E4M3 or U8, .*moert-op quantize .*--format f32" grouped-gemm-glu a:F32[64,64]:0
broken "tensor 'a' has 1 dimensions, not 2" grouped-gemm-quant a:U8[64]:0
broken "tensor 'b' has the shape \\[3, ?64, ?64\\], not \\[2, ?64, ?64\\]" grouped-gemm-glu b:U8[3,64,64]:0
broken "tensor 'b' has the shape \\[2, ?64, ?32\\], not \\[2, ?64, ?64\\]" grouped-gemm-quant b:U8[2,64,32]:0
broken "tensor 'sfa' has 256 bytes; tiled scales \\[64,2\\] of mxfp8-e4m3 have 512" grouped-gemm-glu sfa:U8[256]:0
broken "tensor 'sfb' has 1024 bytes; linear scales \\[128,2\\] .* have 256" 'grouped-gemm-glu --scales linear' sfa:U8[64,2]:0
broken "tensor 'padded_offsets': group 1 of 2 ends at 32, not in \\[64, 64\\]" grouped-gemm-glu padded_offsets:I32[2]:64,32
broken "'padded_offsets': group 1 of 2 ends at 65, not in \\[32, 64\\]" grouped-gemm-quant padded_offsets:I32[2]:32,65
broken "'padded_offsets': group 0 of 2 ends at -1, not in \\[0, 64\\]" grouped-gemm-glu padded_offsets:I32[2]:-1,64
broken "tensor 'alpha' has the shape \\[3\\], not \\[2\\]" grouped-gemm-glu alpha:F32[3]:1
broken "tensor 'prob' is BF16, not F32" grouped-gemm-glu prob:BF16[64]:1
broken "tensor 'bias' is F64, not F32, F16 or BF16$" grouped-gemm-glu bias:F64[2,64]:0
broken "holds no tensor 'c'" grouped-gemm-dglu
broken "holds no tensor 'global_scale_b'.*or neither" 'grouped-gemm-wgrad --format f32' offsets:I32[1]:4 a:F32[8,4]:1 b_t:F32[8,4]:1 \
    global_scale_a:F32[1]:1
broken "holds no tensor 'global_scale_a'.*or neither" 'grouped-gemm-wgrad --format f32' offsets:I32[1]:4 a:F32[8,4]:1 \
    b_t:F32[8,4]:1 global_scale_b:F32[1]:1
broken "holds no tensor 'wgrad'" 'grouped-gemm-wgrad --format f32 --accumulate' offsets:I32[1]:4 a:F32[8,4]:1 b_t:F32[8,4]:1
broken "holds no tensor 'gather'" 'grouped-gemm --permute y' ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1
broken "tensor 'x' has the shape \\[4, ?8\\], not \\[3, ?8\\]" 'grouped-gemm --permute x --topk 2' ends:I32[1]:4 x:F32[4,8]:1 \
    weight:F32[1,8,8]:1 gather:I32[6]:0
broken "tensor 'x' is U8, not f32\\|.*--from" cast x:U8[4]:1
broken "tensor 'x' holds no matrix" quantize x:F32[0,8,32]:0
broken "tensor 'x' has 4 dimensions, not 2 or 3" quantize x:F32[1,1,8,32]:0
misused '--transposed goes with a tensor of two dimensions' 'quantize --axis column --transposed' x:F32[2,8,32]:0
broken "tensor 'x' has 7 columns of gate and up, not 2I" interleave x:F32[2,7]:1
gemm=(ends:I32[1]:4 x:F32[4,8]:1 weight:F32[1,8,8]:1)
misused '--y-transposed is of an operand; --op makes this one the result' 'grouped-gemm --y-transposed' "${gemm[@]}"
misused '--x-axis goes with a quantized format' 'grouped-gemm --x-axis row' "${gemm[@]}"
misused '--weight-axis does not go with this format, whose blocks are 2d' 'grouped-gemm --format fp8-block --weight-axis row' \
    "${gemm[@]}"
misused '--scales goes with quantized operands; all are plain' 'grouped-gemm --scales tiled' "${gemm[@]}"
misused '--scales in tiles have one byte' 'grouped-gemm --format fp8-block --scales tiled' "${gemm[@]}"
misused '--topk goes with --permute' 'grouped-gemm --topk 2' "${gemm[@]}"
misused '--out-format is plain with --op wgrad' 'grouped-gemm --op wgrad --out-format mxfp8' "${gemm[@]}" y:F32[4,8]:1
misused '--accumulate goes with a plain result' 'grouped-gemm --out-format mxfp8 --accumulate' "${gemm[@]}"
misused '--permute does not scatter a quantized result' 'grouped-gemm --out-format mxfp8 --permute y' "${gemm[@]}"
misused '--no-column goes with a quantized d' 'grouped-gemm-glu --no-column'
misused '--b-major n does not go with square blocks of b' 'grouped-gemm-glu --format fp8-block --b-major n'
misused '--format has blocks along the tokens, not 2d' 'grouped-gemm-wgrad --format fp8-128x128'
misused '--scales goes with quantized operands; all are plain' 'grouped-gemm-wgrad --format f32 --scales linear'
broken "tensor 'x_global' goes with --format nvfp4" grouped-gemm "${gemm[@]}" x_global:F32[1]:1
broken "tensor 'norm' goes with a quantized result" grouped-gemm "${gemm[@]}" norm:F32[1]:1
broken "tensor 'norm' is needed, a factor of nvfp4 results: 2688 / " 'grouped-gemm --out-format nvfp4' "${gemm[@]}"
broken "tensor 'norm_const' is needed, a factor of nvfp4 results: 2688 / " 'grouped-gemm-glu --d-format nvfp4'
broken "tensor 'bias_scale' goes with a tensor 'bias'" grouped-gemm "${gemm[@]}" bias_scale:F32[4]:1
broken "tensor 'prob' does not go with a tensor 'bias', whose factor is 'bias_scale'" grouped-gemm "${gemm[@]}" \
    prob:F32[4]:1 bias:F32[1,8]:1
tensors "$work/ends.safetensors" '{"ends":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}' \
    '\2\0\0\0\0\0\0\0'
bad 1 1 'group 0 of 1 ends at 2, not in \[0, 1\]' op quantize --input "$work/ends.safetensors" --output OUT/q.safetensors

# ---- data ----

bad "$both" 1 '/nosuch: No such file' train --data "$work/nosuch" --out OUT/run
: >"$work/empty"
bad "$both" 1 'no text .*/empty' train --data "$work/empty" --out OUT/run
bad "$both" 1 'no text in 0 files .*/none' train --data "$work/none" --out OUT/run
head -c 60 LICENSE >"$work/short"
bad "$both" 1 '60 tokens .*sequences of 32' train "${text[@]:2}" --data "$work/short" --out OUT/run
head -c 8192 /dev/zero | tr '\0' '\1' >"$work/high.bin"
bad "1 2 4" 1 'high\.bin, position 0: token 257 .*vocabulary of 256' train --tokens "$work/high.bin" --out OUT/run
printf '\1\0\2' >"$work/odd.bin"
bad 1 1 'odd\.bin: 3 bytes .*16-bit' train --tokens "$work/odd.bin" --out OUT/run
bad "$both" 1 'input\.safetensors .*no tensor tokens\[' train --tokens $layer/input.safetensors --out OUT/run
tensors "$work/flat.safetensors" '{"tokens":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}' '\1\0\0\0\2\0\0\0'
bad "$both" 1 'flat\.safetensors .*no tensor tokens\[steps,B,S\+1\]' train --tokens "$work/flat.safetensors" --out OUT/run
pair='{"tokens":{"dtype":"I32","shape":[1,1,3],"data_offsets":[0,12]},"targets":{"dtype":"I32","shape":[1,1,2],"data_offsets":[12,20]}}'
tensors "$work/none.safetensors" "$pair" '\1\0\0\0\2\0\0\0\3\0\0\0\377\377\377\377\377\377\377\377'
bad "$both" 1 'the batch of step 0: none of its 2 tokens counts' train "${text[@]:2:6}" --tokens "$work/none.safetensors"
tensors "$work/target.safetensors" "$pair" '\1\0\0\0\2\0\0\0\3\0\0\0\377\377\377\377\0\2\0\0'
bad "$both" 1 'target\.safetensors, position 1: target 512 .*vocabulary of 256' train --tokens "$work/target.safetensors" --out OUT/run
tensors "$work/wide.safetensors" "${pair//1,1,2/1,2,1}" '\1\0\0\0\2\0\0\0\3\0\0\0\1\0\0\0\1\0\0\0'
bad 1 1 'wide\.safetensors: the tensor targets must be \[1,1,2\]' train --tokens "$work/wide.safetensors" --out OUT/run
bad "$both" 2 '--document-end 256: expected a token below the vocabulary of 256' train "${text[@]}" --document-end 256 --out OUT/run
bad 1 2 '--document-end 1x: expected' train "${text[@]}" --document-end 1x --out OUT/run
replay=(--model $model --tokens $model/expected.safetensors)
bad "$both" 1 '21 steps, .*20 batches' train "${replay[@]}" --steps 21 --out OUT/run
bad 1 1 'sequences of 48 tokens, not 32' train "${replay[@]}" --steps 1 --length 32 --out OUT/run
bad 1 1 'batches of 2 sequences, not 4' train "${replay[@]}" --steps 1 --batch 4 --out OUT/run

cp $layer/input.safetensors "$work/nan.safetensors"
start=$((8 + $(od -An -tu8 -N8 $layer/input.safetensors))) # of the data: dy[48,64], then x[48,64]
printf '\0\0\300\177' | dd of="$work/nan.safetensors" bs=1 seek=$((start + 4 * 64 * (48 + 41))) conv=notrunc status=none
nan=(layer --model $layer --input "$work/nan.safetensors" --output OUT/y.safetensors)
bad 1 1 'token 41 has non-finite' "${nan[@]}"
bad 2 1 'rank 1 .*: token 17 has non-finite' "${nan[@]}" # tokens 24 to 47
bad 4 1 'rank 3 .*: token 5 has non-finite' "${nan[@]}"  # tokens 36 to 47
tensors "$work/wide.safetensors" '{"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}' '\0\0\0\0\0\0\0\0'
bad "$both" 1 'wide\.safetensors: x .*64' layer --model $layer --input "$work/wide.safetensors" --output OUT/y.safetensors
sed 's/"dy":{"dtype":"F32","shape":\[48,64\]/"dy":{"dtype":"F32","shape":[64,48]/' $layer/input.safetensors >"$work/transposed.safetensors"
bad 1 1 'transposed\.safetensors: dy .*64' layer --model $layer --input "$work/transposed.safetensors" --output OUT/y.safetensors
tensors "$work/rows.safetensors" \
    '{"dy":{"dtype":"F32","shape":[1,64],"data_offsets":[0,256]},"x":{"dtype":"F32","shape":[2,64],"data_offsets":[256,768]}}' \
    '%768s' ''
bad "$both" 1 'rows\.safetensors: x has 2 rows, dy 1' layer --model $layer --input "$work/rows.safetensors" --output OUT/y.safetensors

# ---- checkpoints ----

mkdir "$work/run"
job 1 "$work/run" train "${text[@]}" --save-every 1 --out "$work/run"
check "a run without faults leaves checkpoints" [ -e "$work/run/checkpoints/step-00000002/state.json" ]
last=$work/run/checkpoints/step-00000002
go_on=("${text[@]}" --steps 3 --out OUT/run)
bad "$both" 1 'nosuch/state\.json: .*No such file' train "${go_on[@]}" --resume "$work/nosuch"
truncate -s 100000 "$(copy moments "$last")/optimizer.safetensors"
bad "$both" 1 'moments/optimizer\.safetensors' train "${go_on[@]}" --resume "$work/moments"
truncate -s 100000 "$(copy weights "$last")/model.safetensors"
bad 2 1 'weights/model\.safetensors' train "${go_on[@]}" --resume "$work/weights"
sed -i '3d' "$(copy stateless "$last")/state.json"
bad "$both" 1 "stateless/state\\.json: '[a-z_]+' is missing" train "${go_on[@]}" --resume "$work/stateless"
echo '{' >"$(copy brace "$last")/state.json"
bad 1 1 'brace/state\.json: it is not valid JSON' train "${go_on[@]}" --resume "$work/brace"
bad "$both" 1 'step-00000002.*shape .*32.*64' train "${go_on[@]}" --hidden 64 --resume "$last"
bad "$both" 1 'step-00000002 was made with seed 1, this run has 2' train "${go_on[@]}" --seed 2 --resume "$last"
bad "$both" 1 'step-00000002 was made with batch 4, this run has 8' train "${go_on[@]}" --batch 8 --resume "$last"
bad "$both" 1 'step-00000002 was made with num_attention_heads [0-9]+, this run has 8' train "${go_on[@]}" --heads 8 --resume "$last"
bad 2 1 'step-00000002 was made with num_hidden_layers 2, this run has 1' train "${go_on[@]}" --layers 1 --resume "$last"
bad 2 1 'step-00000002 was made with num_experts_per_tok 2, this run has 1' train "${go_on[@]}" --topk 1 --resume "$last"
cp -r "$work/run/checkpoints" "$work/elsewhere"
for count in $both; do # one job at a time may write there
    bad "$count" 2 'step-00000002 is of an older run; --resume auto goes on with it' train "${text[@]}" --out "$work/run"
    join
    bad "$count" 2 'run/checkpoints/step-00000002 is of an older run' train "${text[@]}" --out "$work/run" --resume "$work/elsewhere/step-00000001"
    join
done
bad "$both" 2 '--resume does not apply' train "${text[@]}" --save-logits OUT/logits.safetensors --resume "$last"
bad 1 2 '--model .* is where --out .* has its result' train --model "$work/run/model" --data LICENSE --length 64 --out "$work/run"
bad "$both" 2 'sequences of 1024 tokens exceed .*max_position_embeddings' train --model "$work/run/model" --data LICENSE --length 1024 --batch 4 --out OUT/run
start=$((8 + $(od -An -tu8 -N8 "$work/run/model/model.safetensors"))) # of the data: the first tensor begins with NaN
printf '\0\0\300\177' | dd of="$(copy infinite "$work/run/model")/model.safetensors" bs=1 seek=$start conv=notrunc status=none
bad "$both" 1 "infinite/model\.safetensors: element 0 of tensor '.*' is nan; values must be finite" train --model "$work/infinite" --data LICENSE \
    --length 64 --batch 4 --out OUT/run

# ---- pipes ----

mkfifo "$work/pipe" "$work/pipe.xml" # nobody writes to them
pipe() { # NAME FROM FILE: copies a model or checkpoint whose FILE is a pipe
    rm "$(copy "$1" "$2")/$3" && mkfifo "$work/$1/$3"
}
bad "$both" 1 'pipe is neither a regular file' train --data "$work/pipe" --out OUT/run
bad 1 1 'pipe is neither a regular file' train --tokens "$work/pipe" --out OUT/run
bad "$both" 1 'pipe: is a pipe; only regular files' layer --model $layer --input "$work/pipe" --output OUT/y.safetensors
pipe pipe-config $layer config.json
bad "$both" 1 'config\.json: is a pipe' layer --model "$work/pipe-config" "${io[@]}"
pipe pipe-model $layer model.safetensors
bad "$both" 1 'model\.safetensors: is a pipe' layer --model "$work/pipe-model" "${io[@]}"
pipe pipe-state "$last" state.json
bad "$both" 1 'state\.json: is a pipe' train "${go_on[@]}" --resume "$work/pipe-state"
pipe pipe-moments "$last" optimizer.safetensors
bad 1 1 'optimizer\.safetensors: is a pipe' train "${go_on[@]}" --resume "$work/pipe-moments"
bad 1 1 '/dev/zero: is a device; only regular files' layer --model $layer --input /dev/zero --output OUT/y.safetensors
bad 1 2 "MOERT_TOPOLOGY='.*pipe\.xml' is neither" "MOERT_TOPOLOGY=$work/pipe.xml" layer --model $layer "${io[@]}"
bad 1 1 'pipe: is a pipe' tune --out "$work/pipe" --shapes 1x1x8x8

# ---- paths that cannot be written ----

bad "$both" 1 '/proc/run: .*cannot be created' train "${text[@]}" --out /proc/run
bad "$both" 1 '/empty: .*File exists' train "${text[@]}" --out "$work/empty/run"
bad "$both" 1 'nosuch/m\.jsonl: No such file' train "${text[@]}" --metrics "$work/nosuch/m.jsonl"
bad "$both" 1 'nosuch/y\.safetensors.*No such file' layer --model $layer --input $layer/input.safetensors \
    --output "$work/nosuch/y.safetensors"
for ranks in $both; do # separate paths, as the jobs run at the same time
    paths=$work/paths-$ranks
    mkdir -p "$paths"/{layer,gradients,logits}
    ln -s "$paths/elsewhere" "$paths/link"
    bad $ranks 1 '/layer: .*directory' layer --model $layer --input $layer/input.safetensors --output "$paths/layer"
    bad $ranks 1 '/gradients: .*directory' train "${text[@]}" --save-gradients "$paths/gradients"
    bad $ranks 1 '/logits: .*directory' train "${text[@]}" --save-logits "$paths/logits"
    bad $ranks 1 '/link: is not a regular file' train "${text[@]}" --save-logits "$paths/link"
done

join
: >"$log"
verdict "$(ls "$work/run/checkpoints" | grep -vc -e step-00000001 -e step-00000002)" "refused runs add no checkpoint to the older run"
verdict "$(find "$work" -name '*.tmp' -o -name '*.partial' | wc -l)" "no temporary file is left"

# full RANKS DIR PATTERN: a disk with room for one and a half checkpoints fills up; the first checkpoint stays whole
full() {
    local ranks=$1 dir=$work/full$1 ok=0
    mkdir -p "$dir"
    job "$ranks" "$dir" train "${text[@]}" --save-every 1 --out "$2"
    [ $? -eq 1 ] || ok=1
    [ "$(grep -c '^moert' "$dir/stderr")" -eq 1 ] && grep -Eq "$3" "$dir/stderr" || ok=1
    diff -r "$work/run/checkpoints/step-00000001" "$2/checkpoints/step-00000001" >>"$log" 2>&1 || ok=1
    [ "$(ls "$2/checkpoints")" = step-00000001 ] || ok=1
    job "$ranks" "$dir" train "${text[@]}" --save-every 1 --resume "$2/checkpoints/step-00000001" --out "$dir/more" || ok=1
    diff -r "$last" "$dir/more/checkpoints/step-00000002" >>"$log" 2>&1 || ok=1
    verdict $ok "full disk, $ranks ranks: the earlier checkpoint is whole and can be resumed"
}

size=$(du -sb "$last" | cut -f 1)
mkdir "$mount"
if mount -t tmpfs -o size=$((size * 3 / 2)) moert-test "$mount" 2>/dev/null; then
    for ranks in 1 2; do
        full $ranks "$mount/run" 'step-00000002\.tmp/.*No space left'
        rm -rf "$mount/run"
    done
else # a limit on file sizes stands in for the full disk; the optimizer's file is the largest
    (
        trap '' XFSZ
        ulimit -f $((size / 2 / 1024))
        job 1 "$work/run" train "${text[@]}" --save-every 1 --out "$work/limit/run"
        exit $?
    )
    ok=$?
    [ $ok -eq 1 ] && grep -q 'File too large' "$work/run/stderr" && [ -z "$(ls "$work/limit/run/checkpoints")" ]
    verdict $? "a file that cannot be written leaves no checkpoint"
fi

# ---- warnings ----

mkdir "$work/warn"
job 2 "$work/warn" MOERT_FOO=1 train "${text[@]}" --steps 1
[ $? -eq 0 ] && [ "$(grep -c '^moert' "$work/warn/stderr")" -eq 1 ] &&
    grep -q 'warning: unknown variable MOERT_FOO; did you mean' "$work/warn/stderr"
verdict $? "an unknown variable only warns, once"
finish

#!/usr/bin/env bash
# broken_files.sh DIR: writes files below DIR that moert's programs must refuse. DIR/run is a run with checkpoints of steps 1 and
# 2.
set -eu
work=$1 layer=tests/golden/layer/mixtral-a model=tests/golden/model/mixtral-tiny last=$1/run/checkpoints/step-00000002

copy() { # NAME FROM: copies a model or checkpoint, to be broken; prints the directory of the copy
    cp -r "$2" "$work/$1"
    rm -f "$work/$1/manifest.json"
    echo "$work/$1"
}
config() { sed -i "$3" "$(copy "$1" "$2")/config.json"; } # NAME FROM SED
weights() { LC_ALL=C sed -i "$3" "$(copy "$1" "$2")/model.safetensors"; }
data() { echo $((8 + $(od -An -tu8 -N8 "$1"))); } # FILE: prints the offset of the data in a safetensors file
put() { printf "$3" | dd of="$1" bs=1 seek="$2" conv=notrunc status=none; } # FILE OFFSET BYTES

# tensors FILE JSON BYTE...: writes a safetensors file whose header has fewer than 256 bytes
tensors() {
    printf "\\x$(printf %x ${#2})\\0\\0\\0\\0\\0\\0\\0%s" "$2" >"$work/$1.safetensors"
    printf "${@:3}" >>"$work/$1.safetensors"
}

mkdir "$work/none"
mkdir "$work/dataset" && : >"$work/dataset/tokens.bin" && : >"$work/dataset/tokens.idx"
echo '{"LICENSE": "half"}' >"$work/half.json"
echo '{"docs": 0.5, "docs": 0.5}' >"$work/twice.json"

# ---- models ----

config notjson $layer '5s/.*/ "bad" 3,/'
config wordy $layer 's/"hidden_size": 64/"hidden_size": "64"/'
config keyless $layer '/"hidden_size"/d'
config greedy $layer 's/"num_experts_per_tok": 2/"num_experts_per_tok": 9/'
config strange $layer 's/"model_type": "mixtral"/"model_type": "llama"/'
config awq $layer '1s/{/{"quantization_config": {"quant_method": "awq"},/'
config dropout $layer '1s/{/{"resid_pdrop": 0.1,/'
config unknown $model '1s/{/{"frobnicate": 16,/'
config dynamic $model 's/"default"/"dynamic"/'
weights absent $layer 's/experts.3.w2.weight/experts.3.w2.weighs/'
weights shape $layer 's/\[64,96\]/[96,64]/'
weights normless $model 's/model.norm.weight/model.norm.weighs/'
rm "$(copy noconfig $layer)/config.json" "$(copy noweights $layer)/model.safetensors" "$(copy shards $layer)/model.safetensors"
echo '{"weight_map": {"model.norm.weight": "model-00002-of-00002.safetensors"}}' >"$work/shards/model.safetensors.index.json"
for bytes in 0 7 100 300000; do truncate -s $bytes "$(copy cut$bytes $layer)/model.safetensors"; done
put "$(copy header $layer)/model.safetensors" 0 '\377\377\377\377'
infinite=$(copy infinite "$work/run/model")/model.safetensors
put "$infinite" "$(data "$infinite")" '\0\0\300\177'

# ---- data ----

: >"$work/empty"
sed '2s/A/a/' LICENSE >"$work/license" # of the same length
head -c 60 LICENSE >"$work/short"
head -c 8192 /dev/zero | tr '\0' '\1' >"$work/high.bin"
printf '\1\0\2' >"$work/odd.bin"
tensors flat '{"tokens":{"dtype":"I32","shape":[2],"data_offsets":[0,8]}}' '\1\0\0\0\2\0\0\0'
pair='{"tokens":{"dtype":"I32","shape":[1,1,3],"data_offsets":[0,12]},"targets":{"dtype":"I32","shape":[1,1,2],"data_offsets":[12,20]}}'
tensors none "$pair" '\1\0\0\0\2\0\0\0\3\0\0\0\377\377\377\377\377\377\377\377'
tensors target "$pair" '\1\0\0\0\2\0\0\0\3\0\0\0\377\377\377\377\0\2\0\0'
tensors thin "${pair//1,1,2/1,2,1}" '\1\0\0\0\2\0\0\0\3\0\0\0\1\0\0\0\1\0\0\0'
tensors wide '{"x":{"dtype":"F32","shape":[1,2],"data_offsets":[0,8]}}' '\0\0\0\0\0\0\0\0'
tensors ends '{"ends":{"dtype":"I32","shape":[1],"data_offsets":[0,4]},"x":{"dtype":"F32","shape":[1,1],"data_offsets":[4,8]}}' '\2\0\0\0\0\0\0\0'
tensors rows '{"dy":{"dtype":"F32","shape":[1,64],"data_offsets":[0,256]},"x":{"dtype":"F32","shape":[2,64],"data_offsets":[256,768]}}' '%768s' ''
LC_ALL=C sed 's/"dy":{"dtype":"F32","shape":\[48,64\]/"dy":{"dtype":"F32","shape":[64,48]/' $layer/input.safetensors >"$work/transposed.safetensors"
cp $layer/input.safetensors "$work/nan.safetensors" # dy[48,64], then x[48,64], whose token 41 begins with NaN
put "$work/nan.safetensors" $(($(data $layer/input.safetensors) + 4 * 64 * (48 + 41))) '\0\0\300\177'

# ---- checkpoints ----

truncate -s 100000 "$(copy moments "$last")/optimizer.safetensors"
truncate -s 100000 "$(copy weights "$last")/model.safetensors"
sed -i 3d "$(copy stateless "$last")/state.json"
echo '{' >"$(copy brace "$last")/state.json"
for edit in 'applied 41' 'step 99' 'left_out 1' 'skipped_in_row 3' 'data 7'; do
    sed -Ei "s/(\"${edit%% *}\": )(\"[^\"]*\"|[0-9]*)/\\1${edit#* }/" "$(copy "state-${edit/ /}" "$last")/state.json"
done
negative=$(copy negative "$last")/optimizer.safetensors
put "$negative" $(($(stat -c %s "$negative") - 1)) '\200' # sets the sign bit of a second moment, which must not be negative
cp -r "$work/run/checkpoints" "$work/elsewhere"

# ---- named pipes without a writer, and paths that cannot be written ----

mkfifo "$work/pipe" "$work/pipe.xml"
for path in "$layer config.json" "$layer model.safetensors" "$last state.json" "$last optimizer.safetensors"; do
    read -r from file <<<"$path"
    rm "$(copy "pipe-${file%.*}" "$from")/$file"
    mkfifo "$work/pipe-${file%.*}/$file"
done
mkdir "$work/directory"
ln -s "$work/elsewhere" "$work/link"

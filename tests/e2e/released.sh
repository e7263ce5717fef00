#!/usr/bin/env bash
# run: all
# Released low-precision weights: training from weights stored as MXFP4 or FP8 gives the same bytes as training from the same
# values stored as float32, on 1, 2 and 4 ranks. The trained model is stored as float32. tests/tools/release, which draws the
# weights, decodes them independently of the loader.
. "$(dirname "$0")/../support/e2e.sh"
release=${TEST_BUILD:-build}/tests/release

# publish FORM FROM QUANTIZATION_CONFIG: makes two models from the model FROM: $tmp/FORM/low in low precision and $tmp/FORM/plain
# in float32
publish() {
    local form=$1 from=$2 config=$3 to=$tmp/$1
    mkdir -p "$to/low" "$to/plain"
    cp "$from/config.json" "$to/plain/"
    sed "0,/{/s//{\"quantization_config\": {$config},/" "$from/config.json" >"$to/low/config.json"
    "$release" "$form" "$from/model.safetensors" "$to/low/model.safetensors" "$to/plain/model.safetensors" >"$log" 2>&1
    verdict $? "$form: $from has released weights"
}

# same TITLE FILE FILE: prints the verdict that two files are equal and not empty
same() {
    [ -s "$2" ] && cmp "$2" "$3" >>"$log" 2>&1
    verdict $? "$1"
}

fp8='"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic", "weight_block_size": [128, 128]'
mxfp4='"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "model.layers.*.mlp.router"]'

# ---- a layer ----

layer() { # FORM low|plain RANKS: computes y, dx and the gradients
    ranks "$3" "$bin/moert-layer" --model "$tmp/$1/$2" --input "$golden/input.safetensors" \
        --output "$tmp/$1/$2-$3.safetensors"
}

layers() { # FORM CASE QUANTIZATION_CONFIG
    local count
    golden=tests/golden/layer/$2
    publish "$1" "$golden" "$3"
    layer "$1" plain 1
    for count in 1 2 4; do
        layer "$1" low $count
        same "$1: $2 on $count ranks gives the bytes of plain weights" "$tmp/$1/low-$count.safetensors" \
            "$tmp/$1/plain-1.safetensors"
    done
}

layers mxfp4 gpt_oss-a "$mxfp4"
layers fp8 deepseek_v3-a "$fp8"

# sets the last scale of the last expert to NaN; the last rank owns this expert
file=$tmp/mxfp4/low/model.safetensors
start=$((8 + $(od -An -tu8 -N8 "$file")))
end=$(head -c $start "$file" | grep -ao 'gate_up_proj_scales"[^}]*' | grep -o '[0-9]*\]$')
printf '\377' | dd of="$file" bs=1 seek=$((start + ${end%]} - 1)) conv=notrunc status=none
refused 1 "low/model.safetensors: tensor '.*gate_up_proj_blocks' is nan at \[7, 191, 32\], .* scale nan; weights" \
    "mxfp4: a NaN scale on one rank is refused with its position" layer mxfp4 low 2

# ---- models whose matrices have several blocks ----

train() { # DIR RANKS OPTION...
    ranks "$2" "$bin/moert-train" --model "$1" --data LICENSE --batch 4 --length 32 --steps 1 --log-every 0 "${@:3}"
}

# models FORM MODEL_TYPE QUANTIZATION_CONFIG SIZE...
models() {
    local form=$1 type=$2 dir=$tmp/$1-$2 count
    ranks 1 "$bin/moert-train" --form "${type//_/-}" "${@:4}" --layers 2 --experts 4 --data LICENSE --batch 4 --length 32 \
        --steps 0 --out "$tmp/new-$form"
    mv "$tmp/$form" "$tmp/$form-layer"
    publish "$form" "$tmp/new-$form/model" "$3"
    mv "$tmp/$form" "$dir"
    train "$dir/plain" 1 --out "$dir/plain-1"
    for count in 1 2 4; do
        train "$dir/low" $count --out "$dir/low-$count"
        same "$form: a $type model trained on $count ranks gives the bytes of plain weights" \
            "$dir/low-$count/model/model.safetensors" "$dir/plain-1/model/model.safetensors"
    done
    ! grep -q quantization_config "$dir/low-1/model/config.json" && grep -q "$type" "$dir/low-1/model/config.json" &&
        train "$dir/low-1/model" 2 --save-logits "$tmp/logits.safetensors"
    verdict $? "$form: the trained $type model has no quantization_config, and loads"
    ranks 1 "$bin/moert-info" --model "$dir/low" --length 32 && grep -q "weights on disk: $form" "$log"
    verdict $? "$form: moert-info names the format of the weights on disk"
}

models fp8 qwen3_moe "$fp8" --hidden 160 --intermediate 200 --heads 2 --head-size 96
models mxfp4 gpt_oss "$mxfp4" --hidden 96 --intermediate 64 --heads 2
finish

#!/usr/bin/env bash
# moert-train against a golden model of every family: logits and gradients of the first step, then losses and gradient norms of 20
# steps of AdamW, on 1, 2 and 4 ranks; all digits are those of 1 rank. TEST_ALL=1 adds 3 ranks and the staged engine.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
golden=tests/golden/family

# train MODEL RANKS OPTION...
train() {
    local model=$golden/$1 count=$2
    shift 2
    ranks "$count" "$bin/moert-train" --model "$model" --tokens "$model/expected.safetensors" --lr 1e-3 \
        --lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 --beta2 0.95 \
        --aux-coef "$(sed -n 's/.*"aux_coef": *\([0-9.e-]*\).*/\1/p' "$model/curve.json")" "$@"
}

# model NAME RANKS ENGINE
model() {
    local run=$tmp/$1-$2-$3 one=$tmp/$1-1-auto aux=()
    MOERT_EXCHANGE=$(engine "$3")
    export MOERT_EXCHANGE
    grep -Eq '"aux_coef": *0\.0,?$' "$golden/$1/curve.json" || aux=(--aux)
    train "$1" "$2" --gradients "$run.safetensors" &&
        "$compare" tensors --expected "$golden/$1/grads_step0.safetensors" --actual "$run.safetensors" \
            --tolerance 2e-5 >>"$log" 2>&1
    verdict $? "$*, gradients: $(tail -n 1 "$log")"
    train "$1" "$2" --steps 20 --metrics "$run.jsonl" &&
        "$compare" curve --expected "$golden/$1/curve.json" --metrics "$run.jsonl" --tolerance 1e-4 "${aux[@]}" \
            >>"$log" 2>&1
    verdict $? "$*, 20 steps: $(tail -n 1 "$log")"
    [ "$2-$3" = 1-auto ] && return
    check "$*: the gradients of 1 rank, byte for byte" cmp "$one.safetensors" "$run.safetensors"
    check "$*: the digits of 1 rank" diff <(sed 's/, "tokens_per_s": [^,}]*//' "$one.jsonl") \
        <(sed 's/, "tokens_per_s": [^,}]*//' "$run.jsonl")
}

runs() { # NAME
    local count
    train "$1" 1 --logits "$tmp/logits.safetensors" &&
        "$compare" tensors --expected "$golden/$1/expected.safetensors" --only logits \
            --actual "$tmp/logits.safetensors" --tolerance 1e-5 >>"$log" 2>&1
    verdict $? "$1, logits: $(tail -n 1 "$log")"
    for count in 1 2 4; do
        model "$1" "$count" auto
    done
    [ "${TEST_ALL:-0}" -eq 1 ] || return
    model "$1" 3 auto
    model "$1" 2 staged
}

# corrected NAME: biases that move have the same bits on any number of ranks, also across a resume
corrected() {
    local fixed=$golden/$1/model.safetensors how=(--steps 6 --save-every 3 --bias-rate 1e-3)
    train "$1" 1 "${how[@]}" --out "$tmp/one" && train "$1" 2 "${how[@]}" --out "$tmp/other" &&
        "$compare" tensors --expected "$fixed" --actual "$tmp/one/model/model.safetensors" \
            --only model.layers.1.mlp.gate.e_score_correction_bias --tolerance 1e-4 >>"$log" 2>&1
    verdict $((! $?)) "$1: the correction biases move"
    check "$1: 2 ranks give the model of 1" cmp "$tmp"/{one,other}/model/model.safetensors
    rm -r "$tmp/other/checkpoints/step-00000006"
    train "$1" 4 "${how[@]}" --out "$tmp/other" --resume auto
    check "$1: so do 4 ranks that resume the run" cmp "$tmp"/{one,other}/model/model.safetensors
}

part corrected deepseek-v3-yarn
for path in "$golden"/*/; do part runs "$(basename "$path")"; done
finish

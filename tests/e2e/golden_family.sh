#!/usr/bin/env bash
# run: check all
# moert-train against the golden cases of model families, and of packed documents and masked targets: logits of the first step (and
# gradients, if the case has them), then losses and gradient norms of all steps of AdamW, on 1 rank, and on 2 or 4 as the commit
# chooses; all digits are those of 1 rank. TEST_ALL=1 has 1 to 4 ranks and the staged engine.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
golden=tests/golden

# field CASE KEY: prints the value in curve.json, or nothing
field() { sed -nE "s/^ *\"$2\": *\"?([^\",]*).*/\1/p" "$golden/$1/curve.json"; }

# train CASE RANKS OPTION...: a case of packed documents names its model and the token that ends a document
train() {
    local name=$1 count=$2 model end
    model=$(field "$name" model) end=$(field "$name" document_end)
    shift 2
    ranks "$count" "$bin/moert-train" --model "$golden/${model:-$name}" --tokens "$golden/$name/expected.safetensors" \
        --document-end "${end:-none}" --lr 1e-3 --lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 \
        --beta2 0.95 --aux-coef "$(field "$name" aux_coef)" "$@"
}

# gradients CASE RANKS ENGINE
gradients() {
    train "$1" "$2" --save-gradients "$tmp/$2-$3.safetensors" &&
        "$compare" tensors --expected "$golden/$1/grads_step0.safetensors" --actual "$tmp/$2-$3.safetensors" \
            --tolerance 2e-5 >>"$log" 2>&1
    verdict $? "$*, gradients: $(tail -n 1 "$log")"
    [ "$2-$3" = 1-auto ] && return
    check "$*: the gradients of 1 rank, byte for byte" cmp "$tmp/1-auto.safetensors" "$tmp/$2-$3.safetensors"
}

# curve CASE RANKS ENGINE
curve() {
    local aux=()
    [ "$(field "$1" aux_coef)" = 0.0 ] || aux=(--aux)
    train "$1" "$2" --metrics "$tmp/$2-$3.jsonl" &&
        "$compare" curve --expected "$golden/$1/curve.json" --metrics "$tmp/$2-$3.jsonl" --tolerance 1e-4 \
            "${aux[@]}" >>"$log" 2>&1
    verdict $? "$*, curve: $(tail -n 1 "$log")"
    [ "$2-$3" = 1-auto ] && return
    check "$*: the digits of 1 rank" diff <(sed 's/, "tokens_per_s": [^,}]*//' "$tmp/1-auto.jsonl") \
        <(sed 's/, "tokens_per_s": [^,}]*//' "$tmp/$2-$3.jsonl")
}

# model CASE RANKS ENGINE
model() {
    MOERT_EXCHANGE=$(engine "$3")
    export MOERT_EXCHANGE
    [ ! -e "$golden/$1/grads_step0.safetensors" ] || gradients "$@"
    curve "$@"
}

runs() { # CASE
    local count counts=(1 $((2 + 2 * $(choice 2 "$1"))))
    [ "${TEST_ALL:-0}" -eq 0 ] || counts=(1 2 3 4)
    train "$1" 1 --save-logits "$tmp/logits.safetensors" &&
        "$compare" tensors --expected "$golden/$1/expected.safetensors" --only logits \
            --actual "$tmp/logits.safetensors" --tolerance 1e-5 >>"$log" 2>&1
    verdict $? "$1, logits: $(tail -n 1 "$log")"
    for count in "${counts[@]}"; do
        model "$1" "$count" auto
    done
    [ "${TEST_ALL:-0}" -eq 0 ] || model "$1" 2 staged
}

# corrected CASE: biases that move have the same bits on any number of ranks, also across a resume
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

part corrected family/deepseek-v3-yarn
for path in "$golden"/{family,packed}/*/; do
    path=${path%/}
    part runs "${path#"$golden"/}"
done
finish

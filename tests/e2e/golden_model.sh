#!/usr/bin/env bash
# run: check all
# moert-train against golden models, model families, packed documents and masked targets: logits of the first step (and gradients, if the
# case has them), then losses and gradient norms of all steps of AdamW, on 1 to 4 ranks and with the staged engine. All digits are those
# of 1 rank. The tier check has the small mixtral on 1, 2 and 4 ranks; test_golden has all cases on 2. With MOERT_DEVICE=gpu each model
# runs on 1, 2 and 4 ranks.
. "$(dirname "$0")/../support/e2e.sh"
golden=tests/golden

# field CASE KEY: prints the value in curve.json, or nothing
field() { sed -nE "s/^ *\"$2\": *\"?([^\",]*).*/\1/p" "$golden/$1/curve.json"; }

# train CASE RANKS OPTION...: a case of packed documents names its model and the token that ends a document
train() {
    local model end
    model=$(field "$1" model) end=$(field "$1" document_end)
    ranks "$2" "$bin/moert-train" --model "$golden/${model:-$1}" --tokens "$golden/$1/expected.safetensors" \
        --document-end "${end:-none}" --lr 1e-3 --lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 \
        --beta2 0.95 --aux-coef "$(field "$1" aux_coef)" "${@:3}"
}

# agrees TITLE WORD...: the verdict on the command before this one and, if it has succeeded, on tests/tools/compare with these words
agrees() {
    [ $? -eq 0 ] && "$compare" "${@:2}" >>"$log" 2>&1
    verdict $? "$1: $(tail -n 1 "$log")"
}

# model CASE RANKS ENGINE
model() {
    local case=$golden/$1 run=$tmp/$2-$3 aux=() first=()
    export MOERT_EXCHANGE
    MOERT_EXCHANGE=$(engine "$3")
    [ ! -e "$case/grads_step0.safetensors" ] || first=(--save-gradients "$run.safetensors")
    train "$1" "$2" --save-logits "$tmp/logits.safetensors" "${first[@]}"
    agrees "$*, logits" tensors --expected "$case/expected.safetensors" --only logits --actual "$tmp/logits.safetensors" --tolerance 1e-5
    if [ -n "${first[*]}" ]; then
        [ -e "$run.safetensors" ]
        agrees "$*, gradients" tensors --expected "$case/grads_step0.safetensors" --actual "$run.safetensors" --tolerance 2e-5
        [ ! -e "$tmp/1-auto.safetensors" ] || [ "$2-$3" = 1-auto ] || check "$*: the gradients of 1 rank, byte for byte" cmp "$tmp/1-auto.safetensors" "$run.safetensors"
    fi
    [ "$(field "$1" aux_coef)" = 0.0 ] || aux=(--aux)
    mkdir "$run"
    train "$1" "$2" --metrics "$run/metrics.jsonl"
    agrees "$*, curve" curve --expected "$case/curve.json" --metrics "$run/metrics.jsonl" --tolerance 1e-4 "${aux[@]}"
    [ ! -e "$tmp/1-auto" ] || [ "$2-$3" = 1-auto ] || check "$*: the digits of 1 rank" diff <(digits "$tmp/1-auto") <(digits "$run")
}

runs() { # CASE
    local count counts=(2)
    case $TEST_TIER-${MOERT_DEVICE:-}-$1 in
    all-*) counts=(1 2 3 4) ;;
    check-gpu-model/* | check-*-model/mixtral-tiny) counts=(1 2 4) ;;
    esac
    for count in "${counts[@]}"; do model "$1" "$count" auto; done
    [ "$TEST_TIER" = all ] || return
    [[ $1 = model/* ]] || counts=(2)
    for count in "${counts[@]}"; do model "$1" "$count" staged; done
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

only check part corrected family/deepseek-v3-yarn
cases=("$golden"/{model,family,packed}/*/)
[ "$TEST_TIER-${MOERT_DEVICE:-}" != check- ] || cases=("$golden/model/mixtral-tiny")
for path in "${cases[@]}"; do
    path=${path%/}
    part runs "${path#"$golden"/}"
done
finish

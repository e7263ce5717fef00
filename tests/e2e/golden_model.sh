#!/usr/bin/env bash
# run: check all
# Compares moert-train with golden models, model families, packed documents and masked targets, on 1 to 4 ranks and with the
# staged engine. Compares logits of the first step (and gradients, if the case has them), then losses and gradient norms of all
# steps of AdamW. All digits equal the digits of 1 rank. The tier check runs the small mixtral on 1, 2 and 4 ranks; test_golden runs
# all cases on 2 ranks. With MOERT_DEVICE=gpu each model runs on 1, 2 and 4 ranks.
. "$(dirname "$0")/../support/e2e.sh"
golden=tests/golden

# field CASE KEY: prints the value of KEY in the case's curve.json, or nothing if it is absent
field() { sed -nE "s/^ *\"$2\": *\"?([^\",]*).*/\1/p" "$golden/$1/curve.json"; }

# train CASE RANKS OPTION...: trains the model of a case. For packed documents, curve.json names the model and the token that ends
# a document
train() {
    local model end
    model=$(field "$1" model) end=$(field "$1" document_end)
    ranks "$2" "$bin/moert-train" --model "$golden/${model:-$1}" --tokens "$golden/$1/expected.safetensors" \
        --document-end "${end:-none}" --lr 1e-3 --lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 \
        --beta2 0.95 --aux-coef "$(field "$1" aux_coef)" "${@:3}"
}

# agrees TITLE WORD...: prints the verdict on the preceding command and, if that has succeeded, on tests/tools/compare with the
# arguments WORD...
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

# corrected CASE: checks that correction biases that change in training have the same bits on any number of ranks, also across a
# resume
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

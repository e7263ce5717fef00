#!/usr/bin/env bash
# run: check all
# moert-train against golden models: logits and gradients of the first step, then losses and gradient norms of 20 steps of AdamW,
# on up to 4 ranks, some without a sequence. MOERT_DEVICE=gpu runs each model on 1, 2 and 4 ranks; TEST_ALL=1 adds 3 ranks and
# more engines.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
golden=tests/golden/model

# train MODEL RANKS OPTION...
train() {
    local model=$golden/$1 count=$2
    shift 2
    ranks "$count" "$bin/moert-train" --model "$model" --tokens "$model/expected.safetensors" --lr 1e-3 \
        --lr-schedule constant --weight-decay 0.1 --decay-all --grad-clip 0 --beta2 0.95 \
        --aux-coef "$(sed -n 's/.*"aux_coef": *\([0-9.e-]*\).*/\1/p' "$model/curve.json")" "$@"
}

# logits MODEL
logits() {
    train "$1" 1 --save-logits "$tmp/logits.safetensors" &&
        "$compare" tensors --expected "$golden/$1/expected.safetensors" --only logits \
            --actual "$tmp/logits.safetensors" --tolerance 2e-5 >>"$log" 2>&1
    verdict $? "$1, logits: $(tail -n 1 "$log")"
}

# model MODEL RANKS ENGINE
model() {
    local metrics=$tmp/$1-$2-$3.jsonl gradients=$tmp/$1-$2-$3.safetensors aux=()
    MOERT_EXCHANGE=$(engine "$3")
    export MOERT_EXCHANGE
    [ "$1" = mixtral-tiny-aux ] && aux=(--aux)
    train "$1" "$2" --save-gradients "$gradients" &&
        "$compare" tensors --expected "$golden/$1/grads_step0.safetensors" --actual "$gradients" \
            --tolerance 2e-5 >>"$log" 2>&1
    verdict $? "$*, gradients: $(tail -n 1 "$log")"
    train "$1" "$2" --steps 20 --metrics "$metrics" &&
        "$compare" curve --expected "$golden/$1/curve.json" --metrics "$metrics" --tolerance 1e-4 "${aux[@]}" \
            >>"$log" 2>&1
    verdict $? "$*, 20 steps: $(tail -n 1 "$log")"
    [ "$2-$3" = 1-auto ] && return
    check "$*: the gradients of 1 rank, byte for byte" cmp "$tmp/$1-1-auto.safetensors" "$gradients"
}

runs() { # MODEL
    local count counts=(1 2 4)
    case ${TEST_ALL:-0}-${MOERT_DEVICE:-}-$1 in
    1-* | 0-gpu-*) ;;
    *-aux) counts=(1 4) ;;
    *-qwen3-tiny) counts=(1 2) ;;
    esac
    logits "$1"
    for count in "${counts[@]}"; do
        model "$1" "$count" auto
    done
    [ "${TEST_ALL:-0}" -eq 1 ] || return
    model "$1" 3 window
    for count in 1 2 3 4; do
        model "$1" "$count" staged
    done
}

for name in mixtral-tiny mixtral-tiny-aux qwen3-tiny; do part runs $name; done
finish

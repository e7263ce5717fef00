#!/usr/bin/env bash
# run: all
# New models of every form of --form, and golden models of the families that have no form: training gives the same bits on any
# number of ranks, also across a resume. The tools accept the trained models.
. "$(dirname "$0")/../support/e2e.sh"
pack=${TEST_BUILD:-build}/tests/pack

all=$tmp # shared by all parts
"$pack" "$all/x.safetensors" 'x:F32[40,64]:~1' 'dy:F32[40,64]:~2' || exit 1

# train NAME RANKS OPTION...
train() {
    ranks "$2" "$bin/moert-train" --data LICENSE --length 32 --batch 6 --log-every 0 --lr 3e-3 --lr-schedule constant --out "$tmp/$1" "${@:3}"
}

form() { # FORM EXPERTS OPTION...
    local model=$tmp/one/model sizes=(--form "$1" --hidden 64 --intermediate 48 --heads 4 --layers 3 --experts "$2" "${@:3}")
    train one 1 "${sizes[@]}" --steps 8 --save-every 4 &&
        awk -F '"loss": ' '{ loss[NR] = $2 + 0 } END { exit !(NR == 8 && loss[8] > 0 && loss[8] < loss[1] - 0.3) }' "$tmp/one/metrics.jsonl"
    verdict $? "$1: the loss falls"
    train three 3 "${sizes[@]}" --steps 4 --save-every 4 && train three 2 "${sizes[@]}" --steps 8 --save-every 4 --resume auto &&
        same_run "$tmp/one" "$tmp/three"
    verdict $? "$1: 3 ranks, then 2 after a resume, give the bits of one rank"
    train low 2 --model "$model" --steps 2 --precision mxfp8 --dense bf16 --dispatch mxfp8 --combine bf16 --profile &&
        has_lines "$tmp/low/metrics.jsonl" '"step": 1, "loss": [0-9]' && [ -s "$tmp/low/profile.json" ]
    verdict $? "$1: low precision, with a profile"
    ranks 2 "$bin/moert-info" --model "$model" --length 32
    verdict $? "$1: moert-info reads the model"
    ranks 2 "$bin/moert-layer" --model "$model" --layer 1 --input "$all/x.safetensors" --output "$tmp/y.safetensors" --precision bf16
    verdict $? "$1: moert-layer computes a layer of it"
}

# golden CASE: training in three precisions gives the bits of one rank, with layers that are recomputed, experts that move, and
# a resume on another number of ranks
golden() {
    local case=tests/golden/family/$1 precision how
    how=(--model "$case" --tokens "$case/expected.safetensors" --document-end none --lr 3e-3 --lr-schedule constant --aux-coef 0
        --log-every 0 --rebalance 2 --spare-slots 1)
    for precision in f32 bf16 mxfp8; do
        [ $precision = f32 ] || how+=(--precision $precision --dense bf16)
        ranks 1 "$bin/moert-train" "${how[@]}" --steps 8 --save-every 4 --out "$tmp/$precision" &&
            ranks 3 "$bin/moert-train" "${how[@]}" --steps 4 --save-every 4 --recompute layer --out "$tmp/$precision-3" &&
            ranks 2 "$bin/moert-train" "${how[@]}" --steps 8 --save-every 4 --verify 4 --out "$tmp/$precision-3" --resume auto &&
            same_run "$tmp/$precision" "$tmp/$precision-3"
        verdict $? "$1, $precision: 3 ranks, then 2 after a resume, give the bits of one rank"
    done
    ranks 2 "$bin/moert-info" --model "$tmp/f32/model" --length 32
    verdict $? "$1: moert-info reads the model"
}

part form mixtral 5
part form qwen3-moe 6 --kv-heads 1 --topk 3
part form olmoe 6
part form qwen2-moe 5
part form glm4-moe 6
part form gpt-oss 6 --kv-heads 1
part form deepseek-v2 6 --topk 3
part form deepseek-v3 16
for name in aria-text axk1 deepseek-v32 exaone-moe flex-olmo granitemoe-swa hunyuan-v1-moe mellum; do
    part golden "$name"
done
finish

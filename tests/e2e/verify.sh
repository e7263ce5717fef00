#!/usr/bin/env bash
# run: check all
# moert-train --verify: ranks repeat each other's work. A wrong bit in what they check ends the run before anything is saved, and the
# rank is named (both, if there are only two); runs without wrong bits go on with the same bytes.
# VERIFY_PLANTS=N plants N random bits (6); VERIFY_STEPS=N checks N steps of each clean run (4); VERIFY_SEED=N repeats the choice.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
VERIFY_SEED=${VERIFY_SEED:-$$} steps=${VERIFY_STEPS:-4}
echo "# VERIFY_SEED=$VERIFY_SEED"
train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 3 --experts 8 --length 32 --batch 8 --log-every 0)

# ---- no false alarm, and no other bytes ----

clean() { # TITLE RANKS ENGINE OPTION...
    local options=(--steps "$steps" --save-every "$steps" "${@:4}")
    MOERT_EXCHANGE=$(engine "$3") ranks "$2" "${train[@]}" "${options[@]}" --out "$tmp/plain" &&
        MOERT_NODE_RANKS=$(node_ranks "$3") MOERT_EXCHANGE=$(engine "$3") ranks "$2" "${train[@]}" "${options[@]}" --verify 1 \
            --out "$tmp/verified" && same_run "$tmp/plain" "$tmp/verified"
    verdict $? "$1: $2 ranks verify $steps steps"
}
part clean "f32" 1 local
part clean "f32" 3 staged --micro-batches 2
sampled clean "f32 on two hosts" 4 node
part clean "replicas of experts" 4 window --ep 2
sampled clean "bf16" 2 window --precision bf16 --dense bf16 --dispatch bf16 --combine bf16 --micro-batches 4
sampled clean "mxfp8" 3 window --precision mxfp8 --dispatch mxfp8
sampled clean "nvfp4, layers computed again" 2 staged --precision nvfp4 --recompute layer
sampled clean "experts computed again" 2 window --recompute experts --micro-batches 2
sampled clean "documents" 3 window --document-end 10
sampled clean "experts that move" 3 window --rebalance 2
sampled clean "latent attention, dense layers, shared experts" 3 staged --form deepseek-v3 --head-size 16

# ---- wrong bits ----

wrong='the device or memory is faulty; nothing of the step is saved$'
# found SITE RANK RANKS PATTERN [OPTION...]: a bit is wrong at step 1, in the only layer
found() {
    MOERT_PLANT="$1 $2 1 0 12345 7" ranks "$3" "${train[@]}" --layers 1 --steps 3 --verify 1 --save-every 1 --out "$tmp/run" "${@:5}"
    [ $? -eq 1 ] && has_lines "$log" "^moert-train: $4" && [ "$(ls "$tmp/run/checkpoints")" = step-00000001 ]
    verdict $? "a wrong bit in $1, ${*:5}$3 ranks"
    rm -rf "$tmp/run"
}
one_of_three() { found "$1" 1 3 "rank 1 \(.*\): wrong bits at step 1 in $2: other than those of ranks 2 on .* and 0 on .*; $wrong" "${@:3}"; }
alone_wrong() { found "$1" 1 3 "rank 1 \(.*\): wrong bits at step 1 in $2: they are others when computed again; $wrong" "${@:3}"; }
sites() {
    local expert='\(expert [0-7] of layer 0\)'
    one_of_three attention 'attention \(layer 0\)'
    alone_wrong route "the router's choice of experts \(layer 0\)"
    one_of_three rows "the rows that were dispatched to it $expert"
    one_of_three prob "the routing weights that were dispatched to it $expert"
    one_of_three y "its results $expert"
    alone_wrong out 'the combined results of the MLP \(layer 0\)'
    one_of_three dy "the gradients of its results that were dispatched to it $expert" --precision mxfp8 --dispatch mxfp8
    one_of_three dx "the gradients of its rows $expert" --precision bf16 --combine bf16
    one_of_three dprob "the gradients of its routing weights $expert"
}
gradients() {
    one_of_three expert_gradient 'the gradients of its weights \(expert [0-7] of layer 0\)'
    alone_wrong d_middle "the combined gradients of the MLP's inputs \(layer 0\)"
    one_of_three d_input "the gradients of the layer's inputs \(layer 0\)"
    one_of_three attention_gradient "the gradients of attention's weights \(layer 0\)"
    one_of_three optimizer 'the update of [a-z0-9_.]*'
    found y 1 2 'rank 1 \(.*\): its bits at step 1 in its results \(expert [4-7] of layer 0\) differ from those of rank 0 on [^ ]*; the device'
    found optimizer 0 2 'rank 0 \(.*\): its bits at step 1 in the update of [a-z0-9_.]* differ from those of rank 1 on [^ ]*; the device'
    found y 0 1 "wrong bits at step 1 in its results \(expert [0-7] of layer 0\): they are others when computed again; $wrong"
    # the step's bits are in the weights of all ranks when they are compared
    MOERT_PLANT='weights 2 1 0 12345 7' ranks 3 "${train[@]}" --steps 3 --verify 1
    has_lines "$log" "^moert-train: rank 2 \(.*\): wrong bits at step 1 in the weights of [a-z0-9_.]*: other than those of ranks 0 on .* and 1 on .*; $wrong"
    verdict $? "a wrong bit in a replicated weight"
}
part sites
part gradients

# random SEED: plants a random bit; it must be found if and only if its layer is checked
random() {
    local sites=(attention rows prob y out dy dx dprob expert_gradient d_middle d_input attention_gradient optimizer)
    RANDOM=$1
    local site=${sites[RANDOM % ${#sites[@]}]} count=$((2 + RANDOM % 3)) step=$((RANDOM % 3)) layer=$((RANDOM % 3))
    local rank=$((RANDOM % count)) word=$((RANDOM * 32768 + RANDOM)) bit=$((RANDOM % 31)) status title checked
    [ $bit -ne 30 ] || bit=31 # not the highest bit of the exponent: infinite values end a run before its check
    title="$site, rank $rank of $count, step $step, layer $layer, word $word, bit $bit"
    MOERT_LOG=info MOERT_PLANT="$site $rank $step $layer $word $bit" ranks "$count" "${train[@]}" --steps 3 --verify 1 --seed "$1"
    status=$?
    checked=$(sed -nE "s/.*verify: step $step checks layer ([0-9]+) .*/\1/p" "$log" | head -n 1)
    if [ "$site" = optimizer ] || [ "$checked" = "$layer" ]; then
        [ $status -eq 1 ] && if [ $count -eq 2 ] && grep -q 'its bits at step' "$log"; then
            has_lines "$log" "rank [01] \(.*\): its bits at step $step in .* differ from those of rank [01] on "
        else
            has_lines "$log" "rank $rank \(.*\): wrong bits at step $step in "
        fi
        verdict $? "found: $title"
    else
        [ $status -eq 0 ] && [ -n "$checked" ]
        verdict $? "not in what is checked: $title"
    fi
}
plants() { # FIRST STEP
    for ((i = $1; i < ${VERIFY_PLANTS:-6}; i += $2)); do random $((VERIFY_SEED + i)); done
}
part plants 0 2
part plants 1 2

# ---- going back ----

back() {
    local run=("${train[@]}" --steps 6 --save-every 2 --keep-last 9)
    ranks 3 "${run[@]}" --out "$tmp/whole"
    MOERT_PLANT='optimizer 1 4 0 77 20' ranks 3 "${run[@]}" --verify 1 --on-mismatch back --tensorboard --out "$tmp/back" &&
        has_lines "$log" "warning: rank 1 .*: wrong bits at step 4 in the update of .*; going back to step 4\$" &&
        rm "$tmp/back"/events.* && same_run "$tmp/whole" "$tmp/back"
    verdict $? "--on-mismatch back: the run goes back to its last checkpoint, and ends with the bytes of one without wrong bits"
    MOERT_PLANT='optimizer 1 1 0 77 20' ranks 3 "${run[@]}" --verify 1 --on-mismatch back --out "$tmp/none"
    [ $? -eq 1 ] && has_lines "$log" '^moert-train: rank 1 .*: wrong bits at step 1 in the update of '
    verdict $? "without a checkpoint to go back to, the run ends"
}
part back
MOERT_PLANT='y 0 0 3 1 1' logged alone "${train[@]}" --verify 1 --steps 1
[ $? -eq 2 ] && has_lines "$log" "^moert-train: MOERT_PLANT='y 0 0 3 1 1': expected SITE RANK STEP LAYER WORD BIT, a layer below 3 "
verdict $? "a plant that is malformed is refused"
finish

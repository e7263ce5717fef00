#!/usr/bin/env bash
# run: all
# moert-train --verify in jobs of 2 to 4 ranks: runs without wrong bits write the same bytes as without --verify; a wrong bit ends
# the job with one message; --on-mismatch back continues from a checkpoint. tests/unit/tools/test_verify.c tests every kind of
# wrong bit and every option.
. "$(dirname "$0")/../support/e2e.sh"
train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 3 --experts 8 --length 32 --batch 8 --log-every 0)

clean() { # TITLE ENGINE OPTION...
    local options=(--steps 4 --save-every 4 "${@:3}")
    export MOERT_EXCHANGE MOERT_NODE_RANKS
    MOERT_EXCHANGE=$(engine "$2") MOERT_NODE_RANKS=$(node_ranks "$2")
    ranks 4 "${train[@]}" "${options[@]}" --out "$tmp/plain" && ranks 4 "${train[@]}" "${options[@]}" --verify 1 --out "$tmp/verified" &&
        same_run "$tmp/plain" "$tmp/verified"
    verdict $? "$1: 4 ranks verify 4 steps"
}
part clean "two hosts" node
part clean "replicas of experts" window --ep 2

back() {
    local run=("${train[@]}" --steps 6 --save-every 2 --keep-last 9)
    alone "${run[@]}" --out "$tmp/whole"
    MOERT_PLANT='optimizer 1 4 0 77 20' ranks 3 "${run[@]}" --verify 1 --on-mismatch back --tensorboard --out "$tmp/back" &&
        has_lines "$log" "warning: rank 1 .*: wrong bits at step 4 in the update of .*; going back to step 4\$" &&
        rm "$tmp/back"/events.* && same_run "$tmp/whole" "$tmp/back"
    verdict $? "--on-mismatch back: the run goes back to its last checkpoint, and ends with the bytes of one without wrong bits"
    MOERT_PLANT='optimizer 1 1 0 77 20' ends 1 '^moert-train: rank 1 .*: wrong bits at step 1 in the update of ' \
        "without a checkpoint to go back to, the run ends" ranks 3 "${run[@]}" --verify 1 --on-mismatch back --out "$tmp/none"
}
part back

warn() {
    local run=("${train[@]}" --steps 4)
    MOERT_PLANT='optimizer 1 1 0 77 20' ranks 3 "${run[@]}" --verify 2 --on-mismatch warn --out "$tmp/warn" &&
        has_lines "$log" 'warning: rank 1 .*: wrong bits at step 1 in the update of .*' \
            '^verified 2 of 4 steps: 50\.0 % of the work was repeated in [0-9.]* % of the time; bits differed in [1-9] comparisons$'
    verdict $? "--on-mismatch warn: a warning names the rank, and the run goes on"
}
part warn

share() {
    local run=("${train[@]}" --steps 12)
    alone "${run[@]}" --out "$tmp/plain" && ranks 2 "${run[@]}" --verify-share 0.9 --out "$tmp/share" &&
        has_lines "$log" '^verified [1-9][0-9]* of 12 steps: .*; all bits were equal$' && same_run "$tmp/plain" "$tmp/share"
    verdict $? "--verify-share: some steps are verified, and the bytes are those of a run without"
}
part share
MOERT_PLANT='y 0 0 3 1 1' part ends 2 "^moert-train: MOERT_PLANT='y 0 0 3 1 1': expected SITE RANK STEP LAYER WORD BIT, a layer below 3 " \
    "a plant that is malformed is refused" alone "${train[@]}" --verify 1 --steps 1
finish

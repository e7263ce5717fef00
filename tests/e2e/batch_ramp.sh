#!/usr/bin/env bash
# run: check
# moert-train --batch-ramp: the batch grows from 2 to 6 sequences, and no sequence of an epoch is left out or used twice. The run has
# the same bits on any number of ranks, with --verify, after a resume in the middle of the ramp, and in a replay.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-train
small=(--hidden 32 --intermediate 32 --heads 2 --layers 1 --length 32 --log-every 0)
ramp=(--batch 6 --batch-ramp 2:2:3)

# values RUN KEY: prints the values of KEY in the lines of metrics, in one line
values() { sed -E "s/.*\"$2\": ([^,}]*).*/\1/" "$1/metrics.jsonl" | paste -sd ' '; }

# ---- the same bits ----

text=(--data tests/golden/data/u8 --held-out 0.1 --micro-batches 2 --steps 10 --save-every 4 --eval-every 5 --watch)
alone "$program" "${small[@]}" "${text[@]}" "${ramp[@]}" --out "$tmp/run" &&
    has_lines "$log" '; 42 sequences are ' '^trained 10 steps, 1344 tokens' && has_lines "$tmp/run/run.json" '"tokens": 1344,' &&
    [ "$(values "$tmp/run" batch)" = '2 2 2 4 4 4 6 6 6 6' ]
verdict $? "the batch grows by 2 sequences every 3 steps"
ranks 3 "$program" "${small[@]}" "${text[@]}" "${ramp[@]}" --verify 3 --out "$tmp/ranks" && same_run "$tmp/run" "$tmp/ranks"
verdict $? "3 ranks that verify each other give the same bits"
cp -r "$tmp/run" "$tmp/parts" && rm -r "$tmp"/parts/checkpoints/step-000000{08,10} "$tmp/parts/model" &&
    ranks 2 "$program" --out "$tmp/parts" --resume auto && has_lines "$log" '^resumed from .* at step 4' '^trained 6 steps, 1024 tokens' &&
    same_run "$tmp/run" "$tmp/parts"
verdict $? "a run that is resumed in the middle of the ramp takes the ramp from its record, on 2 ranks"
mkdir "$tmp/replayed" "$tmp/recorded"
ranks 2 "$program" --out "$tmp/run" --replay 5:3 && mv "$tmp/run/replay-00000005.jsonl" "$tmp/replayed/metrics.jsonl" &&
    sed -n '6,8p' "$tmp/run/metrics.jsonl" >"$tmp/recorded/metrics.jsonl" && diff <(digits "$tmp/recorded") <(digits "$tmp/replayed") >>"$log"
verdict $? "a replay of steps of different batches has their metrics"

# ---- the same sequences ----

# With a learning rate of 0, the losses of the same sequences have the same sum, whatever the batches are
sum() { # OPTION...
    alone "$program" "${small[@]}" --lr 0 --batch 6 --metrics "$tmp/metrics.jsonl" "$@" &&
        sed -E 's/.*"loss": ([^,]*).*"batch": ([^,}]*).*/\1 \2/' "$tmp/metrics.jsonl" | awk '{ sum += $1 * $2 } END { printf "%.7f\n", sum }'
}
same_sequences() { # OPTION...
    local grown constant
    grown=$(sum "$@" --batch-ramp 2:2:3 --steps 10) && constant=$(sum "$@" --batch-ramp 6:1:1 --steps 7) &&
        echo "the losses add up to $grown; with a constant batch to $constant" >>"$log" && [ "$grown" = "$constant" ]
}
same_sequences --data LICENSE --order epochs
verdict $? "a growing batch uses the sequences of a constant batch, by epochs"
same_sequences --data 0.7 LICENSE 0.3 tests/golden/README.md
verdict $? "and of a blend"

# ---- refusals ----

# resume OTHER: resumes the run with another ramp
resume() { alone "$program" --out "$tmp/run" --resume auto --batch-ramp "$1"; }
ends 1 'step-00000010 was made with --batch-ramp 2:2:3, this run has 2:2:4' "a resume with another ramp is refused" resume 2:2:4
refused 2 '--batch-ramp 4:3:3: expected START and INCREMENT that are multiples of --micro-batches, which is 2' \
    "so is a ramp that the micro-batches do not divide" resume 4:3:3
finish

#!/usr/bin/env bash
# run: all
# moert-train --watch: the watched numbers of the layers are the same on any number of ranks and with any engine, and agree with
# the step's metrics. Watching changes no other result. --replay recomputes steps of a run, bit for bit, on any number of ranks,
# and does not change the run's files. --skip-steps leaves out the data of steps, also across a resume.
. "$(dirname "$0")/../support/e2e.sh"

train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 6 --length 16 --batch 4
    --steps 9 --log-every 0 --micro-batches 2 --lr-schedule constant --eval-every 3 --save-every 3 --watch --tensorboard)
run() { # NAME RANKS ENGINE OPTION...
    MOERT_EXCHANGE=$(engine "$3") ranks "$2" "${train[@]}" --out "$tmp/$1" "${@:4}"
}

# ---- watched runs ----

run run 2 window --peak-tflops 0.25
verdict $? "a run with checkpoints after steps 3, 6 and 9"
for setting in "1 local" "3 staged" "4 window"; do
    read -r count name <<<"$setting"
    run "watch-$count" "$count" "$name" && same_run "$tmp/run" "$tmp/watch-$count"
    verdict $? "$count ranks, $name: the numbers of a watched run have the same digits as on 2 ranks"
done
run plain 1 local --no-watch && cp -r "$tmp/run" "$tmp/stripped" &&
    sed -Ei 's/, "([a-z_]*\/[a-z_0-9]*|dead_experts|model_flops_per_s|mfu)": [^,}]*//g' "$tmp/stripped/metrics.jsonl" &&
    same_run "$tmp/plain" "$tmp/stripped"
verdict $? "metrics and model are those of a run without --watch"
run parts 3 staged --steps 3 && run parts 1 local --resume auto && same_run "$tmp/run" "$tmp/parts"
verdict $? "a resumed run goes on with the same digits"

# Each line: the squares of the layers' norms add up to the square of grad_norm; entropies lie between 0 and log 6;
# model_flops_per_s is tokens_per_s times the FLOPs of a token, and mfu is this rate divided by the peak rate of all ranks
consistent() { # RUN FLOPS-OF-A-TOKEN PEAK
    awk -v flops="$2" -v peak="$3" '
        function off(a, b) { return (a - b) / b > 1e-6 || (b - a) / b > 1e-6 }
        {
            delete value; gsub(/[{}"]/, "")
            n = split($0, pair, ", ")
            for (i = 1; i <= n; i++) { split(pair[i], word, ": "); value[word[1]] = word[2] }
            sum = value["grad_norm/layer_0"] ^ 2 + value["grad_norm/layer_1"] ^ 2 + value["grad_norm/outside"] ^ 2
            wrong += off(sqrt(sum), value["grad_norm"])
            for (l = 0; l < 2; l++)
                wrong += !(value["router_entropy/layer_" l] > 1 && value["router_entropy/layer_" l] < log(6)) ||
                    !(value["activation_rms/layer_" l] > 0)
            wrong += !(value["dead_experts"] < 12) || off(value["model_flops_per_s"], value["tokens_per_s"] * flops)
            wrong += off(value["mfu"], value["model_flops_per_s"] / peak)
        }
        END { exit wrong > 0 || NR != 9 }' "$1/metrics.jsonl"
}
# multiply-adds of a token: 2 layers with q, k, v, o, the router, 2 experts and on average 8.5 pairs of query and key; then the
# head
token=$((6 * (2 * (4 * 32 * 32 + 32 * 6 + 2 * 3 * 32 * 64 + 17 * 32) + 32 * 256)))
check "the numbers of a step agree with each other" consistent "$tmp/run" $token 5e11
share=$(grep -o '"mfu": [^,}]*' "$tmp/watch-1/metrics.jsonl" | tail -1 | cut -d' ' -f2)
awk -v share="$share" 'BEGIN { exit !(share > 1e-6 && share < 1) }'
verdict $? "with a measured peak, the MFU is between 0 and 1"

# 40 experts for 8 tokens of 2 slots: at least 24 experts of each layer are dead
ranks 2 "$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 40 --length 4 --batch 2 \
    --steps 1 --log-every 0 --watch --out "$tmp/dead"
dead=$(grep -o '"dead_experts": [0-9]*' "$tmp/dead/metrics.jsonl" | cut -d' ' -f2)
[ "${dead:-0}" -ge 48 ] && [ "$dead" -lt 80 ]
verdict $? "experts without rows are dead"

# ---- replays ----

# prints the lines of steps FIRST..LAST of a metrics file, without measured values such as times
steps() {
    local some
    some=$(mktemp -d -p "$tmp") && awk -v first="$2" -v last="$3" '$2 + 0 >= first && $2 + 0 <= last' "$1" >"$some/metrics.jsonl" &&
        digits "$some"
}
same_steps() { # REPLAY FIRST LAST
    steps "$tmp/run/metrics.jsonl" "$2" "$3" >"$tmp/recorded" && [ "$(wc -l <"$tmp/recorded")" -eq $(($3 - $2 + 1)) ] &&
        diff "$tmp/recorded" <(steps "$1" "$2" "$3") >>"$log" && [ "$(wc -l <"$1")" -eq $(($3 - $2 + 1)) ]
}
contents() { (cd "$tmp/run" && find . -type f ! -name 'replay-*' | LC_ALL=C sort | xargs cksum); }

contents >"$tmp/before"

for setting in "1 local 7 1" "3 staged 4 3" "4 window 0 2"; do
    read -r count name first number <<<"$setting"
    run run "$count" "$name" --replay "$first:$number" --save-every 1 &&
        same_steps "$tmp/run/replay-$(printf %08d "$first").jsonl" "$first" $((first + number - 1))
    verdict $? "$count ranks, $name: the metrics of steps $first to $((first + number - 1)) are the recorded ones in every digit"
done
diff "$tmp/before" <(contents) >>"$log"
verdict $? "the run's files stay as they are"

gradients() { # RANKS ENGINE
    run run "$1" "$2" --replay 3:2 --save-gradients "$tmp/gradients-$1"
}
gradients 1 local && gradients 3 staged && cmp "$tmp/gradients-1" "$tmp/gradients-3" >>"$log"
verdict $? "the gradients of a replayed step are the same on 1 and 3 ranks"
run none 1 local --save-gradients "$tmp/first" && run run 2 window --replay 0 --save-gradients "$tmp/again" && cmp "$tmp/first" "$tmp/again" >>"$log"
verdict $? "those of step 0 are the gradients of a new model"

sed -i 's/^/x/' "$tmp/run/checkpoints/step-00000006/optimizer.safetensors"
run run 2 window --replay 7 && grep -q 'passed over a damaged checkpoint' "$log" && same_steps "$tmp/run/replay-00000007.jsonl" 7 7
verdict $? "a damaged checkpoint is passed over"
rm -rf "$tmp/run/checkpoints"
run run 2 window --replay 7 && same_steps "$tmp/run/replay-00000007.jsonl" 7 7
verdict $? "without checkpoints, the replay begins at step 0"

# steps 2, 3 and 6 are skipped: they have no lines in the metrics and make no updates
run whole 1 local --skip-steps 2:4,6:7 && [ "$(wc -l <"$tmp/whole/metrics.jsonl")" -eq 6 ] &&
    ! grep -Eq '"step": (2|3|6),' "$tmp/whole/metrics.jsonl" && has_lines "$tmp/whole/checkpoints/step-00000009/state.json" '"applied": 6' '"left_out": 3'
verdict $? "steps that are left out have no metrics and no update"
diff <(steps "$tmp/run/metrics.jsonl" 0 1) <(steps "$tmp/whole/metrics.jsonl" 0 1) >>"$log" &&
    ! diff -q <(steps "$tmp/run/metrics.jsonl" 4 4) <(steps "$tmp/whole/metrics.jsonl" 4 4) >>"$log"
verdict $? "the steps before them have the digits of the whole run, the steps behind them other ones"
rm -r "$tmp/parts" && cp -r "$tmp/whole" "$tmp/parts" && rm -r "$tmp"/parts/checkpoints/step-000000{06,09} "$tmp/parts/model"
run parts 3 staged --resume auto && same_run "$tmp/whole" "$tmp/parts"
verdict $? "a resumed run leaves the same data out, by its record"
run parts 2 window --replay 7:2 &&
    diff <(steps "$tmp/whole/metrics.jsonl" 7 8) <(steps "$tmp/parts/replay-00000007.jsonl" 7 8) >>"$log"
verdict $? "a replay as well"
! run parts 2 window --steps 10 --skip-steps 2:4 --resume auto &&
    has_lines "$log" 'made with 3 steps left out, but --skip-steps leaves out 2 steps before this checkpoint'
verdict $? "a resume that leaves other data out is refused"

finish

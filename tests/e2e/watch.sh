#!/usr/bin/env bash
# run: all
# moert-train --watch: the numbers of the layers are the same on any number of ranks and engines, agree with the step's numbers, and
# change nothing else.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh

train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 6 --length 32 --batch 8
    --steps 6 --log-every 0 --micro-batches 2 --lr 3e-3 --save-every 3)
run() { # NAME RANKS ENGINE OPTION...
    MOERT_EXCHANGE=$(engine "$3") ranks "$2" "${train[@]}" --out "$tmp/$1" "${@:4}"
}
watched() { sed -E 's/, "([a-z_]*\/[a-z_0-9]*|dead_experts|model_flops_per_s|mfu)": [^,}]*//g' "$1/metrics.jsonl"; }

run plain 1 local
for setting in "1 local" "2 window" "3 staged" "4 window"; do
    read -r count name <<<"$setting"
    run "watch-$count" "$count" "$name" --watch --tensorboard && same_run "$tmp/watch-1" "$tmp/watch-$count"
    verdict $? "$count ranks, $name: the numbers of a watched run have the same digits as on 1 rank"
    cp -r "$tmp/watch-$count" "$tmp/stripped-$count" && watched "$tmp/watch-$count" >"$tmp/stripped-$count/metrics.jsonl" &&
        same_run "$tmp/plain" "$tmp/stripped-$count"
    verdict $? "$count ranks: metrics and model are those of a run without --watch"
done

# Each line: the squares of the layers' norms add up to that of grad_norm; entropies lie between 0 and log 6; model_flops_per_s is
# tokens_per_s times the FLOPs of a token, and mfu the part of the peak of all ranks
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
        END { exit wrong > 0 || NR != 6 }' "$1/metrics.jsonl"
}
# multiply-adds of a token: 2 layers of q, k, v, o, the router, 2 experts and 16.5 pairs on average; the head
token=$((6 * (2 * (4 * 32 * 32 + 32 * 6 + 2 * 3 * 32 * 64 + 33 * 32) + 32 * 256)))
run peak 2 window --watch --peak-tflops 0.25
check "the numbers of a step agree with each other" consistent "$tmp/peak" $token 5e11
share=$(grep -o '"mfu": [^,}]*' "$tmp/watch-1/metrics.jsonl" | tail -1 | cut -d' ' -f2)
awk -v share="$share" 'BEGIN { exit !(share > 1e-6 && share < 1) }'
verdict $? "with a measured peak, the MFU is between 0 and 1"

# 40 experts for 8 tokens of 2 slots: at least 24 experts of each layer are dead
ranks 2 "$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 40 --length 4 --batch 2 \
    --steps 1 --log-every 0 --watch --out "$tmp/dead"
dead=$(grep -o '"dead_experts": [0-9]*' "$tmp/dead/metrics.jsonl" | cut -d' ' -f2)
[ "${dead:-0}" -ge 48 ] && [ "$dead" -lt 80 ]
verdict $? "experts without rows are dead"

saves=(--watch --lr-schedule constant)
run whole 2 window "${saves[@]}" && run parts 3 staged "${saves[@]}" --steps 3 && run parts 1 local "${saves[@]}" --resume auto &&
    same_run "$tmp/whole" "$tmp/parts"
verdict $? "a resumed run goes on with the same digits"

finish

#!/usr/bin/env bash
# run: all
# moert-train --profile: every operation has a row, the rows add up to a step, and losses and models keep their bits. --trace: every
# rank has rows in time order.
. "$(dirname "$0")/../support/e2e.sh"

common=(--data LICENSE tests/golden/README.md --hidden 64 --intermediate 96 --heads 4 --layers 2 --experts 8 --length 64 --steps 5
    --log-every 0 --seed 7)

train() { # NAME RANKS ENGINE OPTION...
    local name=$1 count=$2 engine=$3
    shift 3
    MOERT_EXCHANGE=$engine ranks "$count" "$bin/moert-train" "${common[@]}" --out "$tmp/$name" "$@"
}

has_rows() { # NAME ROW...: true if the table and the JSON have these rows
    local name=$1 row
    shift
    for row in "$@"; do
        grep -q "^  $row  *[0-9-]" "$log" && grep -q "\"name\": \"$row\"" "$tmp/$name/profile.json" ||
            { echo "no row $row" >>"$log"; return 1; }
    done
}

# column NAME KEY: prints the value of KEY in each row of NAME's JSON, one per line
column() { sed -n "s/^ *\"$2\": \([0-9.e+-]*\),\{0,1\}\$/\1/p" "$tmp/$1/profile.json"; }

adds_up() { # NAME: true if the shares add up to 1, and the times of the rows to the time of a step
    column "$1" share | awk '{ sum += $1 } END { exit !(sum > 0.999 && sum < 1.001) }' &&
        column "$1" ms_per_step | awk '{ ms[NR] = $1; if (NR > 1) sum += $1 }
            END { exit !(ms[1] > 0 && sum > 0.999 * ms[1] && sum < 1.001 * ms[1]) }'
}

# within_the_run NAME: checks the profile of a run on one rank, which covers the last three steps. True if the profile's time of a
# step is at most the mean time of these steps in the metrics, and more than half of that mean. A step has 1024 tokens
within_the_run() {
    tail -n 3 "$tmp/$1/metrics.jsonl" | sed 's/.*"tokens_per_s": \([^,}]*\).*/\1/' |
        awk -v ms="$(column "$1" ms_per_step | head -n 1)" '{ sum += 1024 / $1 * 1000 / 3 }
            END { printf "%g ms of %g ms\n", ms, sum; exit !(ms > 0.5 * sum && ms <= 1.001 * sum) }' >>"$log"
}

rows=('experts fprop' 'experts dgrad' 'experts wgrad' 'attention projections' 'head' 'router projection' 'attention core' 'GLU'
    'norms' 'router' 'dispatch' 'combine' 'embedding' 'loss' 'optimizer' 'training data' 'host')
for run in "1 local" "2 window" "2 staged"; do
    read -r count engine <<<"$run"
    train "plain-$engine" "$count" "$engine" --batch 16
    status=$?
    ! grep -q 'GFLOP' "$log" && [ ! -e "$tmp/plain-$engine/profile.json" ] && [ $status -eq 0 ]
    verdict $? "$run: without --profile there is no profile"
    train "$engine" "$count" "$engine" --batch 16 --profile && has_rows "$engine" "${rows[@]}" &&
        grep -q '^  step .* 100.0 %' "$log" &&
        grep -Eq '^profile of 3 steps, .* at best [1-9][0-9.]* GFLOP/s' "$log" &&
        grep -Eq '^  GEMM: [0-9.]+ % of the step, at ' "$log"
    verdict $? "$run: every operation has a row"
    check "$run: the rows add up to a step" adds_up "$engine"
    diff <(digits "$tmp/plain-$engine") <(digits "$tmp/$engine") >>"$log" 2>&1 &&
        diff -r "$tmp/plain-$engine/model" "$tmp/$engine/model" >>"$log" 2>&1
    verdict $? "$run: the bits are those without --profile"
done

check "a step takes no longer than the metrics say" within_the_run local
train precise 2 staged --batch 16 --precision mxfp8 --profile && has_rows precise quantize 'exchange: messages'
verdict $? "quantizing and waiting for messages have rows"
train short 1 local --batch 16 --steps 1 --profile && grep -q '^profile of 1 step' "$log"
verdict $? "a run of one step is profiled"
MOERT_BACKEND=reference train reference 1 local --batch 2 --steps 3 --profile &&
    column reference share | awk '{ sum += $1 } END { exit !(sum > 0.999 && sum < 1.001) }'
verdict $? "the rows of a run on the reference backend add up"

# traced NAME RANKS: checks that each rank's trace has five steps in sequence, and that the rank's device operations and messages
# are within the steps
traced() {
    python3 - "$tmp/traced-$1/trace" "$2" <<'END'
import json, sys
events, ranks = json.load(open(sys.argv[1]))["traceEvents"], int(sys.argv[2])
names = "steps", "device", "messages", "rows in flight forth", "rows in flight back"
rows = {(e["pid"], e["tid"]): e["args"]["name"] for e in events if e["name"] == "thread_name"}
assert rows == {(r, i): name for r in range(ranks) for i, name in enumerate(names)}, rows
for r in range(ranks):
    steps, device, messages, forth, back = (sorted((e for e in events if e["ph"] == "X" and (e["pid"], e["tid"]) == (r, i)), key=lambda e: e["ts"])
                                            for i in range(5))
    assert [s["name"] for s in steps] == [f"step {n}" for n in range(2, 7)], steps
    assert len(device) > 100 and {e["name"] for e in device} >= {"experts fprop", "dispatch", "combine", "optimizer"}
    assert len(messages) > 10, len(messages)
    assert len(forth) == len(back) and (len(forth) > 0) == (ranks > 1), (len(forth), len(back)) # a layer adds two spans to each list in a step
    assert all(there["ts"] <= home["ts"] + home["dur"] for there, home in zip(forth, back)), "rows came back before they left"
    for row in (steps, device, messages, forth, back):
        assert all(a["ts"] + a["dur"] <= b["ts"] + 1 for a, b in zip(row, row[1:])), "overlap"
    inside = sum(any(s["ts"] <= e["ts"] + 500 and e["ts"] + e["dur"] <= s["ts"] + s["dur"] + 500 for s in steps) for e in device)
    assert inside == len(device), (inside, len(device))
END
}
if command -v python3 >/dev/null; then
    for run in "1 local" "2 staged"; do
        read -r count engine <<<"$run"
        train "traced-$engine" "$count" "$engine" --batch 16 --steps 9 --profile --trace "$tmp/traced-$engine/trace" &&
            traced "$engine" "$count" >>"$log" 2>&1
        verdict $? "$run: a trace shows five steps of every rank"
    done
else
    verdict 0 "traces # SKIP no python3 to read them"
fi
train unwritable 2 window --batch 16 --trace "$tmp/none/trace"
[ $? -ne 0 ] && grep -q 'none/trace.tmp: No such file' "$log" && [ ! -e "$tmp/unwritable/metrics.jsonl" ]
verdict $? "a trace that cannot be written ends the run before its first step, with a message that names the file"
finish

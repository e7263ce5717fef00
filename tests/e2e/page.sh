#!/usr/bin/env bash
# run: night
# The page of moert-report in Chromium: each curve, tick, mark, fact, option, bar and shade agrees with the run's files (checked
# by tests/tools/page_oracle.py). The controls work, and text is readable on narrow and wide screens, in light and dark mode.
. "$(dirname "$0")/../support/e2e.sh"
browser=$(command -v chromium || command -v chromium-browser)
if [ -z "$browser" ] || ! command -v python3 >/dev/null; then
    verdict 0 "pages in a browser # SKIP no chromium or no python3; launch/install-deps --night installs the browser"
    finish
fi
export TMPDIR=$tmp HOME=$tmp # Chromium writes to both

train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 4 --length 32 --batch 6 --log-every 0)
report() { logged alone "$bin/moert-report" "$@"; }
judged() { # TITLE KIND ARGUMENT...
    BROWSER=$browser logged python3 tests/tools/page_oracle.py "${@:2}"
    verdict $? "$1"
}
# shown NAME TITLE [SMOOTHING]: prints the verdict on the figures of the page of the run NAME
shown() {
    report "$tmp/$1" || cat "$log"
    judged "$2: every figure is that of the run" figures "$tmp/$1" "$tmp/$1/report.html" "${@:3}"
}

MOERT_EXCHANGE=$(engine window) ranks 3 "${train[@]}" --steps 90 --eval-every 15 --split 0.8,0.1,0.1 --watch --profile --out "$tmp/full" \
    --trace "$tmp/full/trace.json" || cat "$log"
shown full "a watched and profiled run of 3 ranks with a trace"
shown full "smoothed" 11
judged "the slider and the pointer" controls "$tmp/full" "$tmp/full/report.html"
judged "narrow, wide, light and dark" looks "$tmp/full/report.html"

MOERT_EXCHANGE=staged ranks 2 "${train[@]}" --steps 8 --profile --out "$tmp/staged" --trace "$tmp/staged/trace.json" || cat "$log"
shown staged "a trace with rows in flight"

mkdir "$tmp/old"
cp "$tmp/full/metrics.jsonl" "$tmp/old"
shown old "a run of an older version, without run.json and profile"
alone "${train[@]}" --steps 3 --held-out 0 --out "$tmp/short" || cat "$log"
shown short "3 steps without held-out losses"
for more in "20 0.1" "60 0.02"; do
    read -r steps decay <<<"$more"
    alone "${train[@]}" --steps "$steps" --eval-every 10 --save-every 20 --weight-decay "$decay" --resume auto --out "$tmp/resumed" || cat "$log"
done
shown resumed "a run that was resumed with another option"
judged "its narrow and dark page" looks "$tmp/resumed/report.html"

# made-up runs: NAME STEPS WIDTH. A run has a held-out loss every WIDTH steps, and the loss rises after half of the steps
made() {
    mkdir "$tmp/$1"
    awk -v steps="$2" -v every="$3" 'BEGIN {
        for (i = 0; i < steps; i++) {
            loss = 2 + 3 / (1 + 8 * i / steps) + (i * 7919 % 13) / 100
            printf "{\"step\": %d, \"loss\": %s, \"grad_norm\": %s, \"lr\": %.17g, \"tokens_per_s\": %d, \"expert_load\": 1.5", i,
                i % 11 == 5 ? "null" : loss, i % 11 == 5 ? "null" : 1e-3 * (1 + i % 3), 1e-5 * (i + 1) / steps, 1e6 + i % 7 * 1e5
            if (i % every == every - 1) printf ", \"heldout_loss\": %.17g", 3 + (i / steps - 0.5) ^ 2
            print i % 11 == 5 ? ", \"skipped\": true}" : "}"
        }
    }' >"$tmp/$1/metrics.jsonl"
}
made parted 200 10
shown parted "losses that part, and skipped steps"
grep -q '^! Held-out and training loss part at step 99: ' <(alone "$bin/moert-report" "$tmp/parted"; cat "$log")
verdict $? "the console names the step at which they part"
made long 5000 250
shown long "more steps than pixels"
judged "its controls" controls "$tmp/long" "$tmp/long/report.html"

# 20 ranks on hosts of 8, 17 experts: the page has maps without numbers in their cells, and the same maps with numbers
mkdir "$tmp/many"
cp "$tmp/parted/metrics.jsonl" "$tmp/full/profile.json" "$tmp/many"
python3 - "$tmp/many" <<'END'
import json, random, sys
random.seed(1)
ranks, draw = 20, random.uniform
matrix = lambda most: [[0 if r == c else draw(0, most) for c in range(ranks)] for r in range(ranks)]
with open(sys.argv[1] + "/profile-steps.jsonl", "w") as file:
    for step in range(2, 6):
        operations = {name: [draw(0.8, 1.2) * ms for _ in range(ranks)] for name, ms in {"experts dgrad": 40, "GLU": 10, "combine": 5, "other messages": 20, "host": 15}.items()}
        print(json.dumps({"step": step, "step_ms": [sum(ms[r] for ms in operations.values()) for r in range(ranks)],
                          "waited_ms": [draw(0, 15) for _ in range(ranks)], "operations": operations}), file=file)
with open(sys.argv[1] + "/profile-ranks.json", "w") as file:
    json.dump({"steps": 4, "engine": "node", "group": ranks, "ranks": [{"host": f"a-long-host-name-{r // 8}.cluster.example.org", "node": r // 8} for r in range(ranks)],
               "waited_ms": matrix(20), "dispatched_bytes": matrix(1e6), "combined_bytes": matrix(1e6),
               "expert_rows": [[random.expovariate(1) for _ in range(17)] for _ in range(4)]}, file)
END
shown many "many ranks and experts"
judged "their narrow and dark page" looks "$tmp/many/report.html"

# text that would act as markup if the page did not escape it, in each file and in the names of directories and hosts
hostile="</script><script>document.body.dataset.drawn='no'</script><b>&amp;\"'"$'\u2028'
cp -r "$tmp/full" "$tmp/${hostile//\//|}"
python3 - "$tmp/${hostile//\//|}" "$hostile" <<'END'
import json, os, sys
run, text = sys.argv[1:]
for name in ("run.json", "profile-ranks.json", "profile.json", "profile-steps.jsonl"):
    path = os.path.join(run, name)
    lines = open(path).read().splitlines() if name.endswith("l") else [open(path).read()]
    objects = [json.loads(line) for line in lines]
    for o in objects:
        if name == "run.json":
            o["data"] = o["sessions"][0]["commit"] = o["sessions"][0]["ranks"][0]["host"] = text
            o["sessions"][0]["command"].append(text)
            o["sessions"][0]["options"][text] = {"value": text, "source": "given"}
        elif name == "profile-ranks.json":
            o["ranks"][0]["host"] = text
        elif name == "profile.json":
            o["rows"][0]["name"] = text
        else:
            o["operations"][text] = o["operations"].pop("norms")
    open(path, "w").write("\n".join(map(json.dumps, objects)) + "\n")
END
shown "${hostile//\//|}" "text that looks like markup"
finish

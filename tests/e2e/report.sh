#!/usr/bin/env bash
# run: all
# moert-report names a slow rank on the console and on the page. The page is one file with a record in JSON. Messages name bad
# input. page.sh tests the page in a browser.
. "$(dirname "$0")/../support/e2e.sh"

train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 4 --length 32 --batch 8
    --steps 20 --log-every 0 --eval-every 10)
report() { logged "$bin/moert-report" "$@"; }

# whole PAGE: true if the page refers to no other file and to no web host, contains its style and script files, and has a record
# in JSON
whole() {
    ! grep -Eq '<link|@import|@include|url\(|(src|href)=' "$1" || return 1
    [ "$(grep -oE 'https?://[a-z0-9.]*' "$1" | sort -u)" = http://www.w3.org ] || return 1 # the name of SVG
    [ "$(grep -cE '</(style|script|html)>$' "$1")" -eq 4 ] || return 1
    ! command -v python3 >/dev/null ||
        sed -n 's/^<script type="application\/json" id="record">\(.*\)<\/script>$/\1/p' "$1" | python3 -c 'import json, sys; json.load(sys.stdin)["steps"]["loss"]'
}

# waits until there are metrics, then stops and continues a process repeatedly, so that the process runs a quarter of the time
cat >"$tmp/slowly" <<'END'
"$@" &
process=$!
while [ ! -s "$RUN/metrics.jsonl" ] && kill -0 $process 2>/dev/null; do sleep 0.05; done
while kill -STOP $process 2>/dev/null; do
    sleep 0.06
    kill -CONT $process
    sleep 0.02
done
wait $process
END
slow() { # NAME ENGINE OPTION...: trains on 2 ranks, of which rank 1 is slow
    RUN=$tmp/$1 MOERT_EXCHANGE=$2 mixed 1 "${train[@]}" "${@:3}" : 1 bash "$tmp/slowly" "${train[@]}" "${@:3}"
}
engines=$(engine window)
[ "$TEST_TIER" = check ] || engines="$engines staged"
for engine in $engines; do
    run=$tmp/slow-$engine
    slow "slow-$engine" "$engine" --out "$run" --profile --trace "$run/trace.json" && report "$run" &&
        grep -Eq '^! Rank 1 on .* is slow: the others wait [1-9][0-9] % of the step for it\.$' "$log"
    verdict $? "$engine: a rank that gets a quarter of the time is named"
    page=$run/report.html
    grep -q '"late":1,' "$page" && grep -q 'is slow: the others wait' "$page"
    verdict $? "$engine: it is marked on the page"
    grep -q '"trace":{"name":"step 6",' "$page"
    verdict $? "$engine: the last step of the trace is there"
    check "$engine: the page is one file" whole "$page"
done

mkdir "$tmp/plain"
cp "$run/metrics.jsonl" "$tmp/plain"
report "$tmp/plain" --out "$tmp/page.html" && whole "$tmp/page.html" && grep -q '"run":null,.*"profile":null,"trace":null}' "$tmp/page.html"
verdict $? "a run without a profile and run.json also has a page"

# two watched runs, on 1 and on 2 ranks, have the same losses; a third run with another seed has different losses
for setting in "a 1 1" "b 2 1" "c 1 2"; do
    read -r name count seed <<<"$setting"
    MOERT_EXCHANGE=$(engine window) ranks "$count" "${train[@]}" --watch --seed "$seed" --out "$tmp/$name" || cat "$log"
done
report "$tmp/a" --compare "$tmp/b" && grep -q '^= The losses of the 20 steps that are also in b, 0 to 19, are the same in every digit' "$log" &&
    grep -q '^= Part of the devices. peak (MFU): ' "$log" && grep -q 'same in every digit' "$tmp/a/report.html"
verdict $? "a comparison finds the same digits on 2 ranks"
grep -q '"last":{[^}]*"router_entropy/layer_1":' "$tmp/a/report.html" && whole "$tmp/a/report.html"
verdict $? "the page of a watched run has the numbers of its layers"
grep -q '"run":{"format":1,"status":"ended",.*"seed":{"value":1,"source":"given"}' "$tmp/a/report.html"
verdict $? "the options and their sources are in the page"
report "$tmp/a" --compare "$tmp/c" && grep -q '^= The losses differ from step 0 on: ' "$log"
verdict $? "a comparison names the first step with another loss"

# refuses CODE MESSAGE ARGUMENT...: prints the verdict that moert-report ends with CODE and exactly one message, and writes no
# page
refuses() {
    local code=$1 message=$2
    shift 2
    report "$@"
    [ $? -eq "$code" ] && [ "$(wc -l <"$log")" -eq 1 ] && grep -q "$message" "$log" && [ ! -e "$tmp/bad/report.html" ]
    verdict $? "refused: $message"
}
refuses 2 'no run is named; give moert-report RUN'
refuses 2 'unknown option --outt; did you mean --out?' "$tmp/plain" --outt x
refuses 1 'none/metrics.jsonl: No such file or directory; a run is the --out directory of moert-train' "$tmp/none"
bad() { # FILE TEXT MESSAGE: the slow run with TEXT in FILE is refused with MESSAGE
    rm -rf "$tmp/bad"
    mkdir "$tmp/bad"
    cp "$run"/*.json* "$tmp/bad"
    printf '%s' "$2" >"$tmp/bad/$1"
    refuses 1 "$3" "$tmp/bad"
}
bad metrics.jsonl '' 'metrics.jsonl: no step is finished yet'
bad metrics.jsonl $'{"step": 0, "loss": 1, "tokens_per_s": 5}\n{"step": 1, "lo\n' 'metrics.jsonl: line 2 is not valid JSON'
bad metrics.jsonl $'{"step": 0, "tokens_per_s": 5}\n' 'metrics.jsonl: line 1: there is no "loss"'
bad profile-steps.jsonl $'{"step": 2, "step_ms": [1, "x"], "operations": {}}\n' 'profile-steps.jsonl: line 1: the value of "step_ms" is not'
bad profile-ranks.json '{"ranks": [{"host": "a", "node": 0}]}' 'profile-ranks.json has 1 ranks, profile-steps.jsonl in the same directory has 2'
bad run.json '{"sessions": 1}' 'run.json: the value of "sessions" is not an array'
bad run.json '{"sessions": [{"options": {}}, {}]}' 'run.json: there is no "options"; was the file written by another version'
bad run.json '[1]' 'run.json: it is JSON, but not an object'
bad profile-ranks.json '{"ranks"' 'profile-ranks.json: it is not valid JSON'
bad profile.json '{}' 'profile.json: there is no "rows"'
bad trace.json '{"traceEvents": [{"ph": "M"}]}' 'trace.json: holds no step; expected a trace of moert-train --trace'
refuses 1 'none/metrics.jsonl: No such file' "$tmp/plain" --compare "$tmp/none"
refuses 1 'none: cannot be opened' "$tmp/plain" --trace "$tmp/none"
refuses 1 'none/page.html.tmp: cannot be created' "$tmp/plain" --out "$tmp/none/page.html"
finish

#!/usr/bin/env bash
# moert-report: a slow rank shows in its words and on its page, which is whole by XML's rules; bad input is named.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh

train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 64 --heads 2 --layers 2 --experts 4 --length 32 --batch 8
    --steps 20 --log-every 0 --eval-every 10)
report() { logged "$bin/moert-report" "$@"; }

# well_formed PAGE: a strict parser takes it, no part of it lies elsewhere, and every figure has a title
well_formed() {
    ! grep -Eq '<script|<link|@import|url\([^#]|(src|href)=' "$1" || return 1
    [ "$(grep -c 'role="img"' "$1")" -eq "$(grep -A 1 'role="img"' "$1" | grep -c '<title>')" ] || return 1
    if command -v python3 >/dev/null; then
        python3 -c 'import sys, xml.dom.minidom as xml; xml.parse(sys.argv[1])' "$1"
    elif command -v xmllint >/dev/null; then
        xmllint --noout "$1"
    fi
}

# stops and goes, so that it has a quarter of the time, once there are metrics
cat >"$folder/slowly" <<'END'
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
slow() { # NAME ENGINE OPTION...: rank 1 of 2 is slow
    RUN=$folder/$1 MOERT_EXCHANGE=$2 timeout -k 5 240 "${MOERT_MPIRUN[@]}" -n 1 "${train[@]}" "${@:3}" : -n 1 bash "$folder/slowly" \
        "${train[@]}" "${@:3}" >"$log" 2>&1
}
engines=$(engine window)
[ "${TEST_ALL:-0}" -eq 0 ] || engines="$engines staged"
for engine in $engines; do
    run=$folder/slow-$engine
    slow "slow-$engine" "$engine" --out "$run" --profile --trace "$run/trace.json" && report "$run" &&
        grep -Eq '^! Rank 1 on .* is slow: the others wait [1-9][0-9] % of the step for it\.$' "$log"
    verdict $? "$engine: a rank that gets a quarter of the time is named"
    page=$run/report.html
    grep -q 'class="who late">▶ 1' "$page" && grep -q 'is slow: the others wait' "$page"
    verdict $? "$engine: and marked on the page"
    grep -q 'One step in time' "$page" && grep -q '<title>rank 1 in step 6: ' "$page"
    verdict $? "$engine: a trace is drawn"
    check "$engine: the page is one whole XML file" well_formed "$page"
done

mkdir "$folder/plain"
cp "$run/metrics.jsonl" "$folder/plain"
report "$folder/plain" --out "$folder/page.html" && well_formed "$folder/page.html" && grep -q 'Train with --profile' "$folder/page.html"
verdict $? "a run without a profile has a page, too"

# refuses CODE MESSAGE ARGUMENT...: exactly one message, and no page
refuses() {
    local code=$1 message=$2
    shift 2
    report "$@"
    [ $? -eq "$code" ] && [ "$(wc -l <"$log")" -eq 1 ] && grep -q "$message" "$log" && [ ! -e "$folder/bad/report.html" ]
    verdict $? "refused: $message"
}
refuses 2 'which run? moert-report RUN'
refuses 2 'unknown option --outt; did you mean --out?' "$folder/plain" --outt x
refuses 1 'none/metrics.jsonl: No such file or directory; a run is the --out directory of moert-train' "$folder/none"
bad() { # FILE TEXT MESSAGE: of the slow run, with another text in one of its files
    rm -rf "$folder/bad"
    mkdir "$folder/bad"
    cp "$run"/*.json* "$folder/bad"
    printf '%s' "$2" >"$folder/bad/$1"
    refuses 1 "$3" "$folder/bad"
}
bad metrics.jsonl '' 'metrics.jsonl: no step is finished yet'
bad metrics.jsonl $'{"step": 0, "loss": 1, "tokens_per_s": 5}\n{"step": 1, "lo\n' 'metrics.jsonl: line 2 is not valid JSON'
bad metrics.jsonl $'{"step": 0, "tokens_per_s": 5}\n' 'metrics.jsonl: line 1: there is no "loss"'
bad profile-steps.jsonl $'{"step": 2, "step_ms": [1, "x"], "operations": {}}\n' 'profile-steps.jsonl: line 1: the value of "step_ms" is not'
bad profile-ranks.json '{"ranks": [{"host": "a", "node": 0}]}' 'profile-ranks.json has 1 ranks, profile-steps.jsonl in the same directory has 2'
bad profile-ranks.json '{"ranks"' 'profile-ranks.json: it is not valid JSON'
bad profile.json '{}' 'profile.json: there is no "rows"'
bad trace.json '{"traceEvents": [{"ph": "M"}]}' 'trace.json: holds no step; expected a trace of moert-train --trace'
refuses 1 'none: cannot be opened' "$folder/plain" --trace "$folder/none"
refuses 1 'none/page.html.tmp: cannot be created' "$folder/plain" --out "$folder/none/page.html"
finish

#!/usr/bin/env bash
# run: all
# launch/scaling on 1 and 2 ranks: it prints rows for both modes, with efficiency 1 for the first number of ranks, and writes JSON
# and plots. bench_model: the parts of a row add up to its total, and bad arguments are refused.
. "$(dirname "$0")/../support/e2e.sh"
export MAKEFLAGS= # drops the flags of a make that runs the tests

if [ "${TEST_BUILD:-build}" -ef build ]; then
    logged timeout -k 5 240 launch/scaling --what layer --ranks "1 2" --tokens 64 --sizes "--hidden 64 --experts 4 --topk 2" --repeat 1 --out "$tmp/scaling"
    [ $? -eq 0 ] && [ "$(grep -c '^  layer ' "$log")" -eq 4 ]
    verdict $? "two modes and two numbers of ranks give four lines"
    awk -F, 'NR > 1 && ($3 == 1 && $9 != 1 || $8 <= 0 || ($8 / ($6 / $7 * 1e3) - 1)^2 > 1e-6) { exit 1 } END { exit NR != 5 }' "$tmp/scaling/scaling.csv"
    verdict $? "tokens/s agree with the time; the first number of ranks has efficiency 1"
    [ "$(grep -c '"efficiency": [0-9.]*}' "$tmp/scaling/scaling.json")" -eq 4 ] && [ "$(tail -n 1 "$tmp/scaling/scaling.json")" = ']' ]
    verdict $? "the rows are a JSON array"
    for mode in weak strong; do
        # each row has a point in the plot at the height of its efficiency; efficiency 1 is at the height of the tick 1
        awk -F, -v mode=$mode 'NR > 1 && $2 == mode { print $3 ": " $9 }' "$tmp/scaling/scaling.csv" | diff - <(
            sed -n 's/.*<circle.*<title>\(.*\)<\/title>.*/\1/p' "$tmp/scaling/$mode.svg") &&
            [ "$(sed -n 's/.*<circle.* cy="\([0-9.]*\)".*<title>1: .*/\1/p' "$tmp/scaling/$mode.svg")" = "$(awk -F'"' '/>1<.text>$/ && $6 == "end" { printf "%.1f", $4 - 4 }' "$tmp/scaling/$mode.svg")" ]
    done >"$log" 2>&1
    verdict $? "both plots have the rows"
fi
refused 2 "^scaling: 'none' is not a positive number" "a bad number of ranks is refused" logged launch/scaling --ranks "1 none"
refused 2 "^scaling: --hosts: cannot read .* as a regular file" "a missing file of hosts is refused" logged launch/scaling --hosts "$tmp/missing"

h200() { timeout -k 5 60 "$bin/bench_model" --machine bench/machines/h200.json --model qwen3-30b --tokens 16384 --type bf16 "$@" >"$tmp/out" 2>"$log"; }
h200 --ranks 8,64,1024 --json "$tmp/rows.json"
[ $? -eq 0 ] && [ "$(grep -vc '^#' "$tmp/out")" -eq 3 ] && [ "$(grep -c '"bound"' "$tmp/rows.json")" -eq 3 ] &&
    awk '!/^#/ { sum = -$14; for (i = 8; i <= 13; i++) sum += $i; if ((sum - $5)^2 > 1e-4) exit 1 }' "$tmp/out" &&
    awk '!/^#/ { if ($7 > last && NR > 3) exit 1; last = $7 } /^ *8 / && $7 != 1 { exit 1 }' "$tmp/out"
verdict $? "bench_model: the parts of a row add up, and efficiency falls"
refused 2 "bench_model: --ranks is '8,x'" "bench_model: a bad number of ranks is refused" h200 --ranks 8,x
refused 1 'bench_model: .*none.json' "bench_model: a missing machine file is named" alone "$bin/bench_model" --machine "$tmp/none.json"
refused 2 '--crowd needs three nodes or more, not 1' "bench_model: --crowd on one node is refused" ranks 2 "$bin/bench_model" --crowd bench/machines/h200.json
finish

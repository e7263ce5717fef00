#!/usr/bin/env bash
# launch/scaling on 1 and 2 ranks: rows of both modes, efficiency 1 of the first, the same in JSON, plots; bench_model: a table that adds
# up, and clear refusals.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
export MAKEFLAGS= # not that of a make that runs the tests

if [ "${TEST_BUILD:-build}" -ef build ]; then
    logged timeout -k 5 240 launch/scaling --what layer --ranks "1 2" --tokens 64 --sizes "--hidden 64 --experts 4 --topk 2" --repeat 1 --out "$folder/scaling"
    [ $? -eq 0 ] && [ "$(grep -c '^  layer ' "$log")" -eq 4 ]
    verdict $? "two modes by two counts are four lines"
    awk -F, 'NR > 1 && ($3 == 1 && $9 != 1 || $8 <= 0 || ($8 / ($6 / $7 * 1e3) - 1)^2 > 1e-6) { exit 1 } END { exit NR != 5 }' "$folder/scaling/scaling.csv"
    verdict $? "tokens/s are those of the time; the first count has efficiency 1"
    [ "$(grep -c '"efficiency": [0-9.]*}' "$folder/scaling/scaling.json")" -eq 4 ] && [ "$(tail -n 1 "$folder/scaling/scaling.json")" = ']' ]
    verdict $? "the rows are a JSON array"
    [ -s "$folder/scaling/weak.svg" ] && [ -s "$folder/scaling/strong.svg" ]
    verdict $? "both plots are there"
fi
refused 2 "^scaling: 'none' is not a positive number" "a bad count is refused" logged launch/scaling --ranks "1 none"
refused 2 "^scaling: --hosts: cannot read" "a file of hosts that is not there is refused" logged launch/scaling --hosts "$folder/missing"

h200() { timeout -k 5 60 "$bin/bench_model" --machine bench/machines/h200.json --model qwen3-30b --tokens 16384 --type bf16 "$@" >"$folder/out" 2>"$log"; }
h200 --ranks 8,64,1024 --json "$folder/rows.json"
[ $? -eq 0 ] && [ "$(grep -vc '^#' "$folder/out")" -eq 3 ] && [ "$(grep -c '"bound"' "$folder/rows.json")" -eq 3 ] &&
    awk '!/^#/ { sum = -$14; for (i = 8; i <= 13; i++) sum += $i; if ((sum - $5)^2 > 1e-4) exit 1 }' "$folder/out" &&
    awk '!/^#/ { if ($7 > last && NR > 3) exit 1; last = $7 } /^ *8 / && $7 != 1 { exit 1 }' "$folder/out"
verdict $? "bench_model: the parts of a row add up, and efficiency falls"
refused 2 "bench_model: --ranks is '8,x'" "bench_model: bad counts are refused" h200 --ranks 8,x
refused 1 'bench_model: .*none.json' "bench_model: a machine that is not there is named" alone "$bin/bench_model" --machine "$folder/none.json"
refused 2 '--crowd needs three nodes or more, not 1' "bench_model: one node is no crowd" ranks 2 "$bin/bench_model" --crowd bench/machines/h200.json
finish

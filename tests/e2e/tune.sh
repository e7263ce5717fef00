#!/usr/bin/env bash
# run: all
# moert-tune writes rows that moert-info and GEMMs read. A damaged file of rows gives one warning and changes no bit.
. "$(dirname "$0")/../support/e2e.sh"
rows=$tmp/rows
export MOERT_TUNE_FILE=$rows
tune() { alone "$bin/moert-tune" --busy --seconds 0.001 "$@"; } # beside other tests

tune --shapes 2x5x34x20 --op prepacked_dgrad --dtype f32
{ [ $? -eq 0 ] && [ ! -s "$tmp/none" ] && grep -q '^\[1 of 1\] prepacked_dgrad f32 of 2 experts, 5 rows each, N 34, K 20$' "$log" &&
    [ "$(grep -c '^  \* ' "$log")" -eq 1 ] && [ "$(grep -c '^ .* panels=[0-9]* depth=[0-9]* split=[0-9]* lines=' "$log")" -gt 10 ]; }
verdict $? "a shape is measured, and one candidate is chosen"
{ [ "$(wc -l <"$rows")" -eq 2 ] && grep -Eq '^device ".+" prepacked_dgrad f32 34 20 \* lines=[0-9]+ width=[0-9]+ # 20[0-9-]+, driver .+, moert .+: [0-9.]+ -> [0-9.]+ GFLOP/s$' "$rows" &&
    grep -Eq '^device ".+" prepacked_dgrad f32 34 20 4-7 panels=[0-9]+ depth=[0-9]+ split=[0-9]+ prefetch=[0-9]+ # ' "$rows"; } >>"$log" 2>&1
verdict $? "the tile of a prepacked weight and the other choices of its GEMM get separate rows that record their origin"

tune --shapes 2x5x34x20 3x1x17x33 --dtype f32 --out "$tmp/others"
{ [ $? -eq 0 ] && [ "$(wc -l <"$tmp/others")" -eq 14 ] && [ "$(wc -l <"$rows")" -eq 2 ]; }
verdict $? "--out names another file"
tune --suite small --op wgrad --dtype f32 --no-write
{ [ $? -eq 0 ] && [ "$(grep -Ec '^\[[1-4] of 4(, [0-9]+:[0-9]{2} left)?\] wgrad f32' "$log")" -eq 4 ] && [ "$(wc -l <"$rows")" -eq 2 ]; }
verdict $? "--no-write only measures, and says how much is left"
tune --model tests/golden/model/qwen3-tiny --tokens 64 --ep 2 --no-write
{ [ $? -eq 0 ] && [ "$(grep -c '^\[[1-6] of 6.*, tests/golden/model/qwen3-tiny$' "$log")" -eq 6 ] && ! grep -q 'bf16 of' "$log"; }
verdict $? "--model measures what a training asks of its experts"
alone "$bin/moert-info" && grep -q "there are 2 measured rows in $rows\$" "$log"
verdict $? "moert-info counts the measured rows"

# without --busy, moert-tune refuses to run on a busy machine; the check is skipped if the load is too near the limit
logged alone "$bin/moert-tune" --seconds 0.001 --shapes 2x5x34x20 --op wgrad --dtype f32 --out "$tmp/idle"
status=$?
case $(awk -v n="$(nproc)" '{ most = n * 0.1 > 0.5 ? n * 0.1 : 0.5; print $1 > most + 0.3 ? "busy" : $1 < most - 0.3 ? "idle" : "near" }' /proc/loadavg) in
busy) [ $status -eq 2 ] && [ ! -s "$tmp/idle" ] && has_lines "$log" 'the machine is busy: load [0-9.]+ of the last minute, above' ;;
idle) [ $status -eq 0 ] && [ -s "$tmp/idle" ] ;;
esac
verdict $? "a busy machine's choices are not written without --busy"

MOERT_TUNE=off refused 2 '^moert-tune: .*no file to write tuning rows to' "MOERT_TUNE=off: a run that would write rows is bad usage" tune
MOERT_BACKEND=reference refused 2 '^moert-tune: .*the backend reference has no tuning choices' "a backend without choices is bad usage" tune
MOERT_FORM=gpu refused 2 '^moert-tune: .*nothing to measure' "a device in GPU form is bad usage" tune
MOERT_FORM=gpu alone "$bin/moert-info" && grep -q '^tuning: none' "$log"
verdict $? "moert-info says that a device in GPU form has no tuning"
tune --shapes 2x5x34x20 --op wgrad --dtype f32 --for family --out "$tmp/family"
[ $? -eq 0 ] && [ "$(grep -c '^family "[cg]pu' "$tmp/family")" -eq 1 ]
verdict $? "--for family writes rows for a family of devices"

train() { # NAME RANKS
    ranks "$2" "$bin/moert-train" --data LICENSE --hidden 32 --intermediate 32 --heads 2 --layers 1 --experts 4 --batch 4 \
        --length 32 --steps 2 --log-every 0 --out "$tmp/$1"
}
same() { diff <(digits "$tmp/$1") <(digits "$tmp/$2") >>"$log" 2>&1 && [ -s "$tmp/$1/metrics.jsonl" ]; }

check "a training without measured rows runs" train plain 1
{ head -c 3000 /dev/urandom | tr -d '\0' && printf '\ndefault * * * * * depth=7\ndefault * * * * * lines=3 width=3 split=1 panels=1 depth=16\n'; } >"$rows"
train damaged 1 && grep -aq "^moert warning: $rows:[0-9]*: .*; skipped [0-9]* rows* of tuning" "$log" &&
    [ "$(grep -ac '^moert warning' "$log")" -eq 1 ] && same damaged plain
verdict $? "a damaged file gives one warning, and odd rows change no bit"
finish

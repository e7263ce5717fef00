#!/usr/bin/env bash
# What a run has on disk is checked before it is read: a flipped bit in a checkpoint is named, and --resume auto goes on from the
# newest whole one to the bytes of a run that nothing happened to. One job at a time writes to a directory. CHECKED_SEED=N
# repeats what was drawn: files, bits, ranks.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
flips=6
[ "${TEST_ALL:-0}" -eq 0 ] || flips=40
RANDOM=${CHECKED_SEED:=$$}
echo "# CHECKED_SEED=$CHECKED_SEED"
run=$folder/run
arguments=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 64 --batch 8 --log-every 0 --keep-last 2)
train() { # RANKS DIR OPTION...
    local count=$1 out=$2
    shift 2
    ranks "$count" "$bin/moert-train" "${arguments[@]}" --save-every 10 --steps 40 --out "$out" "$@"
}
flip() { # FILE BIT
    local bytes at byte
    bytes=$(stat -c %s "$1")
    at=$(($2 / 8 % bytes))
    byte=$(od -An -tu1 -j "$at" -N 1 "$1")
    printf "\\x$(printf %x $((byte ^ 1 << $2 % 8)))" | dd of="$1" bs=1 seek="$at" conv=notrunc 2>/dev/null
}
edit() { sed -i "s/\"$2\": [0-9]*/\"$2\": $3/" "$1/state.json"; }
fails() { # TEXT TITLE COMMAND...: the command says TEXT and does not end well
    "${@:3}"
    [ $? -ne 0 ] && grep -Eq -e "$1" "$log"
    verdict $? "$2"
}

train 2 "$run"
verdict $? "a run on 2 ranks"
check "the whole run is as it was written" "$bin/moert-info" --check "$run"

damaged() { # NUMBER FILE BIT RANKS
    local copy=$folder/damaged-$1 newest
    cp -r "$run" "$copy"
    newest=$copy/checkpoints/step-00000040
    flip "$newest/$2" "$3"
    logged "$bin/moert-info" --check "$copy"
    [ $? -eq 1 ] && grep -q "^damaged .*step-00000040/$2" "$log"
    verdict $? "moert-info --check names $2 with bit $3 flipped"
    train "$4" "$copy" --resume auto && grep -q "passed over.*$2" "$log" && same_run "$run" "$copy"
    verdict $? "$4 ranks pass over it and end in the same bytes"
    rm -rf "$copy"
}
files=(config.json manifest.json model.safetensors optimizer.safetensors state.json)
for ((i = 0; i < flips; i++)); do
    part damaged $i "${files[i % 5]}" $((RANDOM * 32768 + RANDOM)) $((1 + RANDOM % 3))
done
join

copy=$folder/model
cp -r "$run/model" "$copy"
flip "$copy/model.safetensors" $((RANDOM + 100000))
fails "model.safetensors: tensor '.* is not as it was written" "a damaged --model is refused" \
    alone "$bin/moert-train" --data LICENSE --length 64 --batch 8 --steps 1 --model "$copy"

edited() { # TEXT FIELD VALUE
    local copy=$folder/edited
    rm -rf "$copy"
    cp -r "$run/checkpoints/step-00000040" "$copy"
    edit "$copy" "$2" "$3"
    fails "$1" "a state with $2 $3 is refused" \
        alone "$bin/moert-train" "${arguments[@]}" --steps 50 --no-verify --resume "$copy"
}
edited "'applied' 41 and 'skipped' 0 are not 'step' 40" applied 41
edited "'applied' 40 and 'skipped' 0 are not 'step' 99" step 99
edited "'skipped_in_row' 3 is above 'skipped' 0" skipped_in_row 3

copy=$folder/negative
cp -r "$run/checkpoints/step-00000040" "$copy"
printf '\x80' | dd of="$copy/optimizer.safetensors" bs=1 conv=notrunc seek=$(($(stat -c %s "$copy/optimizer.safetensors") - 1)) 2>/dev/null
fails "tensor 'second_moment.*, below 0" "a negative second moment is refused" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 50 --no-verify --resume "$copy"

copy=$folder/odd
cp -r "$run" "$copy"
rm -r "$copy/checkpoints/step-00000040"
touch "$copy/checkpoints/step-00000099"
mkdir "$copy/checkpoints/step-99999999999999999999"
train 1 "$copy" --resume auto && rm -r "$copy"/checkpoints/step-*99 && same_run "$run" "$copy"
verdict $? "names of files, and of steps beyond 64 bits, are no checkpoints"

copy=$folder/diverged
cp -r "$run" "$copy"
ranks 2 "$bin/moert-train" "${arguments[@]}" --out "$copy" --resume auto --lr 1e38 --warmup 0 --save-every 2 --steps 60 --max-skipped 8
[ $? -ne 0 ] && grep -q "non-finite gradients" "$log" && [ -d "$copy/checkpoints/step-00000040" ]
verdict $? "checkpoints of skipped steps do not displace good ones"

copy=$folder/shared
"${MOERT_MPIRUN[@]}" -n 1 "$bin/moert-train" "${arguments[@]}" --steps 100000 --out "$copy" >/dev/null 2>&1 &
for ((i = 0; i < 400; i++)); do [ -s "$copy/metrics.jsonl" ] && break; sleep 0.05; done
fails "shared: process [0-9]* on .* writes there" "a second job on one directory is refused, the first one named" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$copy" --resume auto
pid=$(cut -d ' ' -f 2 "$copy/.lock")
kill -KILL "$pid"
wait
check "a lock whose holder was killed does not block" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$copy" --resume auto
[ ! -e "$copy/.lock" ]
verdict $? "a finished run leaves no lock"
finish

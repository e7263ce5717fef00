#!/usr/bin/env bash
# run: all
# The files of a run are checked before they are read. A message names the file with a flipped bit. --resume auto continues from
# the newest undamaged checkpoint, and the run ends with the bytes of an undamaged run. Only one job at a time may write to a run
# directory. CHECKED_SEED=N changes the random choice of bits and ranks; CHECKED_FLIPS=N sets the number of flipped bits.
. "$(dirname "$0")/../support/e2e.sh"
flips=${CHECKED_FLIPS:-20}
RANDOM=${CHECKED_SEED:=1}
echo "# CHECKED_SEED=$CHECKED_SEED"
run=$tmp/run
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

train 2 "$run"
verdict $? "a run on 2 ranks"
check "moert-info --check accepts an undamaged run" alone "$bin/moert-info" --check "$run"

# named FILE BIT DIR: prints the pattern of the message about a flipped bit; if the bit is in a tensor, the pattern contains the
# tensor's name
named() {
    local header=0
    [[ $1 != *.safetensors ]] || header=$((8 + $(od -An -td8 -N 8 "$run/$1")))
    if [ $header -gt 0 ] && [ $(($2 / 8 % $(stat -c %s "$run/$1"))) -ge $header ]; then
        echo "$3/$1: tensor '[a-z0-9._]+' is not as it was written"
    else
        echo "$3/$1"
    fi
}

damaged() { # NUMBER FILE BIT RANKS
    local copy=$tmp/damaged-$1 name
    cp -r "$run" "$copy"
    flip "$copy/$2" "$3"
    name=$(named "$2" "$3" "$copy")
    alone "$bin/moert-info" --check "$copy"
    [ $? -eq 1 ] && grep -Eq "^damaged +$name" "$log"
    verdict $? "moert-info --check names $2 with bit $3 flipped"
    if [[ $2 = model/* ]]; then
        ends 1 "^moert-train: .*$name" "$4 ranks refuse the damaged model" \
            ranks "$4" "$bin/moert-train" --data LICENSE --length 64 --batch 8 --steps 1 --model "$copy/model"
    else
        train "$4" "$copy" --resume auto && grep -Eq "passed over.*$name" "$log" && same_run "$run" "$copy"
        verdict $? "$4 ranks skip the damaged checkpoint and end with the same bytes"
    fi
    rm -rf "$copy"
}
files=({checkpoints/step-00000040,model}/{model.safetensors,config.json,manifest.json} checkpoints/step-00000040/{optimizer.safetensors,state.json})
for ((i = 0; i < flips; i++)); do
    part damaged $i "${files[i % ${#files[@]}]}" $((RANDOM * 32768 + RANDOM)) $((1 + RANDOM % 3))
done
join

copy=$tmp/model
cp -r "$run/model" "$copy"
sed -i 's/"rope_type": "default"/"rope_type": "defaulu"/' "$copy/config.json"
ends 1 "$copy/config.json: is not as it was written" "a config is compared with its checksum before it is read" \
    ranks 2 "$bin/moert-train" --data LICENSE --length 64 --batch 8 --steps 1 --model "$copy"

copy=$tmp/odd
cp -r "$run" "$copy"
rm -r "$copy/checkpoints/step-00000040"
touch "$copy/checkpoints/step-00000099"
mkdir "$copy/checkpoints/step-99999999999999999999"
train 1 "$copy" --resume auto && rm -r "$copy"/checkpoints/step-*99 && same_run "$run" "$copy"
verdict $? "a file, and a directory with a step beyond 64 bits, are not taken for checkpoints"

copy=$tmp/diverged
cp -r "$run" "$copy"
ranks 2 "$bin/moert-train" "${arguments[@]}" --out "$copy" --resume auto --lr 1e38 --warmup 0 --save-every 2 --steps 60 --max-skipped 8
[ $? -ne 0 ] && grep -q "non-finite gradients" "$log" && [ -d "$copy/checkpoints/step-00000040" ]
verdict $? "checkpoints of skipped steps do not displace good ones"

copy=$tmp/shared
"${MOERT_MPIRUN[@]}" -n 1 "$bin/moert-train" "${arguments[@]}" --steps 100000 --out "$copy" >/dev/null 2>&1 &
for ((i = 0; i < 400; i++)); do [ -s "$copy/metrics.jsonl" ] && break; sleep 0.05; done
ends 2 "shared: process [0-9]* on .* writes there" "a second job on a run directory is refused with the process of the first" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$copy" --resume auto
ends 2 "shared/checkpoints: process [0-9]* on .* writes there" "a second job that saves to the checkpoints of the first is refused" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$tmp/other" --save-dir "$copy/checkpoints"
[ ! -e "$tmp/other" ]
verdict $? "a job that is refused leaves nothing"
pid=$(cut -d ' ' -f 2 "$copy/.lock")
kill -KILL "$pid"
wait
check "a lock whose holder was killed does not block" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$copy" --resume auto
[ ! -e "$copy/.lock" ] && [ ! -e "$copy/checkpoints/.lock" ]
verdict $? "a finished run leaves no lock"

copy=$tmp/inner
"${MOERT_MPIRUN[@]}" -n 1 "$bin/moert-train" "${arguments[@]}" --steps 100000 --out "$tmp/outer" --save-dir "$copy/checkpoints" \
    >/dev/null 2>&1 &
for ((i = 0; i < 400; i++)); do [ -s "$tmp/outer/metrics.jsonl" ] && break; sleep 0.05; done
ends 2 "inner/checkpoints: process [0-9]* on .* writes there" "a second job whose checkpoints are the --save-dir of the first is refused" \
    alone "$bin/moert-train" "${arguments[@]}" --steps 1 --out "$copy"
kill -KILL "$(cut -d ' ' -f 2 "$tmp/outer/.lock")"
wait
finish

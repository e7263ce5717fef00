#!/usr/bin/env bash
# run: check
# Bad input ends every program at once on all ranks, for any number of ranks. The status is 2 if the command line or a variable is
# wrong, else 1. Each bad input gives exactly one message, which names the wrong object, its place and its value. No partly
# written file is left. This script runs cases of every kind as commands; tests/unit/tools/test_refusals.c has all cases.
. "$(dirname "$0")/../support/e2e.sh"
export LC_ALL=C
export -n TEST_BUILD # keep them out of the programs' environment
work=$tmp # shared by all parts
layer=tests/golden/layer/mixtral-a
text=(train --data LICENSE --hidden 32 --intermediate 32 --heads 2 --batch 4 --length 32 --steps 2)
io=(--input $layer/input.safetensors --output OUT/y.safetensors)

# job RANKS DIR WORD...: runs [VARIABLE=VALUE...] PROGRAM ARGUMENT..., with OUT in the words replaced by DIR/out. $log gets
# stderr and the status
job() {
    local count=$1 dir=$2 settings=() how=alone status
    shift 2
    [ "$count" -eq 1 ] || how="ranks $count"
    while [[ $1 == *=* ]]; do
        settings+=("$1")
        shift
    done
    local program=$bin/moert-$1
    shift
    $how env "${settings[@]}" sh -c 'exec "$@" >/dev/null' "$program" "$program" "${@//OUT/$dir/out}"
    status=$?
    sed -i 's/\x00//g' "$log" # mpirun of Open MPI 5 writes NUL bytes
    echo "status $status" >>"$log"
    return $status
}

judge() { # RANKS STATUS PATTERN WORD...
    mkdir "$tmp/out"
    refused "$2" "^moert-(info|layer|op|preflight|report|train|tune): .*$3" "status $2, $1 ranks: ${*:4}" job "$1" "$tmp" "${@:4}"
    find "$tmp/out" -mindepth 1 >"$log"
    [ ! -s "$log" ] || verdict 1 "it leaves no file"
}

# bad RANKS STATUS PATTERN WORD...: checks the command WORD... on each number of ranks in RANKS: it ends with STATUS and one
# message that matches PATTERN
bad() {
    local count
    for count in $1; do part judge "$count" "${@:2}"; done
}

mkdir "$work/run"
job 1 "$work/run" "${text[@]}" --save-every 1 --out "$work/run"
last=$work/run/checkpoints/step-00000002
check "a run without faults leaves checkpoints" [ -e "$last/state.json" ]
check "broken files are made" tests/support/broken_files.sh "$work"

# ---- options, variables and files ----

bad "1 2 4" 2 'unknown option --stepz; did you mean --steps\?' "${text[@]}" --stepz 3
bad 2 2 'moert-op runs on one rank, not on 2' op cast "${io[@]}"
bad "1 2 4" 2 'MOERT_EXCHANGE=bogus .*auto\|local\|window\|node\|staged' MOERT_EXCHANGE=bogus "${text[@]}"
bad "1 2" 2 'MOERT_BACKEND=bogus .*auto\|reference\|portable' MOERT_BACKEND=bogus "${text[@]}"
bad 2 1 'MOERT_BACKEND is nvidia, which takes GPUs of compute capability 8\.0 and later, but the device is' MOERT_BACKEND=nvidia "${text[@]}"
bad "1 2" 2 'MOERT_TIMEOUT_S=abc .*0-86400' MOERT_TIMEOUT_S=abc "${text[@]}"
bad "1 2" 2 'MOERT_DEVICE=nosuch matches no OpenCL device; there are: 0:0' MOERT_DEVICE=nosuch "${text[@]}"
bad "1 2" 1 'no OpenCL platform .*OCL_ICD_VENDORS' "OCL_ICD_VENDORS=$work/none/" "${text[@]}"
bad 2 1 'local exchange .* one rank, not 2' MOERT_EXCHANGE=local "${text[@]}" --out OUT/run
bad 1 2 "MOERT_TOPOLOGY='.*pipe\.xml' is neither" "MOERT_TOPOLOGY=$work/pipe.xml" layer --model $layer "${io[@]}"
bad "1 2 4" 1 '/nosuch: .*No such file' layer --model "$work/nosuch" "${io[@]}"
bad "2 4" 1 'rank (1|3) .*: token (17|5) has non-finite' layer --model $layer --input "$work/nan.safetensors" --output OUT/y.safetensors
bad 2 1 'weights/model\.safetensors' "${text[@]}" --steps 3 --out OUT/run --resume "$work/weights"
bad 2 2 '--out .*run has the model of an older run, which would be lost' "${text[@]}" --out "$work/run"
bad 1 1 'pipe: is a pipe' tune --busy --out "$work/pipe" --shapes 1x1x8x8

for program in info layer op preflight report train tune; do
    bad 1 2 'unknown option --nosuch; --help lists the options' $program --nosuch
done
bad 1 1 'nosuch.*: No such file' report OUT/nosuch
bad 1 1 'nosuch.*: No such file' info --model OUT/nosuch

join
: >"$log"
verdict "$(ls "$work/run/checkpoints" | grep -vc -e step-00000001 -e step-00000002)" "refused runs add no checkpoint to the older run"
verdict "$(find "$work" -name '*.tmp' -o -name '*.partial' | wc -l)" "no temporary file is left"

job 2 "$work/run" MOERT_FOO=1 "${text[@]}" --steps 1
[ $? -eq 0 ] && [ "$(grep -c '^moert' "$log")" -eq 1 ] && grep -q 'warning: unknown variable MOERT_FOO; did you mean' "$log"
verdict $? "an unknown variable only warns, once"
finish

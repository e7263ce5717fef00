#!/usr/bin/env bash
# Jobs whose ranks differ in options or in MOERT_* variables end with one message that names the rank and both values.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
train=$(realpath "$bin/moert-train")
tiny=(--hidden 16 --intermediate 16 --heads 2 --layers 1 --experts 2 --batch 2 --length 16 --log-every 0)
job() { timeout -k 5 60 "${MOERT_MPIRUN[@]}" "$@" >"$log" 2>&1; } # arguments of mpirun, such as -n 1 A : -n 1 B

# ---- options ----

text=("$train" "${tiny[@]}" --data LICENSE --steps 1)
option() { # TEXT TITLE WORD...: rank 2 of 3 has these words as well
    refused 2 "^moert-train: rank 2 \(.*\): $1" "$2" job -n 2 "${text[@]}" : -n 1 "${text[@]}" "${@:3}"
}
same='; all ranks must run the same program with the same options$'
option "has --lr 2, but rank 0 has --lr 0.001$same" "another number" --lr 2
option "has --out $tmp/out, but rank 0 has no --out$same" "a path on one rank only" --out "$tmp/out"
option "has --data LICENSE README.md, but rank 0 has --data LICENSE$same" "a longer list" --data README.md
option "--lr x: expected a number" "a bad value on one rank only" --lr x
option "has --help, but rank 0 has no --help$same" "--help on one rank only" --help
refused 2 '^moert-train: rank 1 .*: has --model a, but rank 0 has no --model' "another program" \
    job -n 1 "${text[@]}" : -n 1 "$bin/moert-layer" --model a --input b --output c
refused 2 "^moert-layer: rank 1 .*: has --layer 1, but rank 0 has --layer 0$same" "moert-layer" \
    job -n 1 "$bin/moert-layer" --model a --input b --output c : -n 1 "$bin/moert-layer" --model a --input b --output c --layer 1
job -n 1 "${text[@]}" --lr 1e-2 : -n 1 "$train" --lr=0.01 --steps 1 --data LICENSE "${tiny[@]}"
verdict $? "the same values in other words and another order are the same"

# ---- variables ----

for pair in MOERT_EXCHANGE=staged/auto MOERT_NODE_RANKS=1/0 MOERT_BIND=0/1 MOERT_KERNEL_DIR=kernels/; do
    setting=${pair%%/*}
    refused 2 "^moert-train: rank 1 \(.*\): has $setting, but rank 0 has ${setting%=*}=${pair#*/}; all ranks must have the same variables$" \
        "$setting on one rank only" job -n 1 "${text[@]}" : -n 1 env "$setting" "${text[@]}"
done
job -n 1 "${text[@]}" : -n 1 env MOERT_THREADS=1 MOERT_TUNE=off MOERT_LOG=info "${text[@]}"
verdict $? "threads, tuning and logs may differ"

finish

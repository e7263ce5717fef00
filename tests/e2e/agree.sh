#!/usr/bin/env bash
# run: check
# Jobs whose ranks differ in options, in MOERT_* variables or in the files that they see end with one message that names the rank and
# both values. A resume is accepted if the same data have moved to another directory.
. "$(dirname "$0")/../support/e2e.sh"
train=$(realpath "$bin/moert-train")
all=$tmp # shared by all parts
tiny=(--hidden 16 --intermediate 16 --heads 1 --layers 1 --experts 2 --batch 2 --length 16 --log-every 0)

# ---- options ----

text=("$train" "${tiny[@]}" --data LICENSE --steps 1)
option() { # TEXT TITLE WORD...: rank 2 of 3 also gets these words
    part refused 2 "^moert-train: rank 2 \(.*\): $1" "$2" mixed 2 "${text[@]}" : 1 "${text[@]}" "${@:3}"
}
same='; all ranks must run the same program with the same options$'
option "has --lr 2, but rank 0 has --lr 0.001$same" "another number" --lr 2
option "has --out $tmp/out, but rank 0 has no --out$same" "a path on one rank only" --out "$tmp/out"
option "has --data LICENSE README.md, but rank 0 has --data LICENSE$same" "a longer list" --data README.md
option "--lr x: expected a number" "a bad value on one rank only" --lr x
option "has --help, but rank 0 has no --help$same" "--help on one rank only" --help
part refused 2 '^moert-train: rank 1 .*: has --model a, but rank 0 has --data LICENSE' "another program" \
    mixed 1 "${text[@]}" : 1 "$bin/moert-layer" --model a --input b --output c
part refused 2 "^moert-layer: rank 1 .*: has --layer 1, but rank 0 has --layer 0$same" "moert-layer" \
    mixed 1 "$bin/moert-layer" --model a --input b --output c : 1 "$bin/moert-layer" --model a --input b --output c --layer 1
part check "the same values in other words and another order are the same" \
    mixed 1 "${text[@]}" --lr 1e-2 : 1 "$train" --lr=0.01 --steps 1 --data LICENSE "${tiny[@]}"

# ---- variables ----

for pair in MOERT_EXCHANGE=staged/auto MOERT_NODE_RANKS=1/0 MOERT_BIND=0/1 MOERT_KERNEL_DIR=kernels/; do
    setting=${pair%%/*}
    part refused 2 "^moert-train: rank 1 \(.*\): has $setting, but rank 0 has ${setting%=*}=${pair#*/}; all ranks must have the same variables$" \
        "$setting on one rank only" mixed 1 "${text[@]}" : 1 env "$setting" "${text[@]}"
done
part check "threads, tuning and logs may differ" mixed 1 "${text[@]}" : 1 env MOERT_THREADS=1 MOERT_TUNE=off MOERT_LOG=info "${text[@]}"

# ---- data ----

mkdir -p "$tmp"/{a,b}/corpus "$tmp/c"
seq 100 299 >"$tmp/a/corpus/1"
seq 300 399 >"$tmp/a/corpus/2"
cp "$tmp"/a/corpus/* "$tmp/b/corpus"
data=("$train" "${tiny[@]}" --steps 2 --save-every 2)
see() { # DIRECTORY WORD...: rank 0 works in the directory a, rank 1 in this one
    mixed 1 env -C "$all/a" "${data[@]}" "${@:2}" : 1 env -C "$1" "${data[@]}" "${@:2}"
}
check "ranks that see the same files in different places train" see "$tmp/b" --data corpus --out "$tmp/run"

# differs EDIT TEXT TITLE WORD...: checks that the job ends with TEXT if the command EDIT has changed rank 1's copy of the data
# directory
differs() {
    cp -r "$all/a" "$tmp/b"
    (cd "$tmp/b" && eval "$1")
    refused 1 "^moert-train: rank 1 \(.*\): $2" "$3" see "$tmp/b" "${@:4}" --out "$tmp/none"
    [ ! -e "$tmp/none" ] || verdict 1 "it leaves no run directory"
}
must='; all ranks must see the same data$'
other="sed -i s/350/351/ corpus/2"
part differs "$other" "has corpus/2 of 400 bytes, XXH3 [0-9a-f]{32}, but rank 0 has corpus/2 of 400 bytes, XXH3 [0-9a-f]{32}$must" \
    "other content of the same size" --data corpus
part differs "$other" "has corpus/2 of 400 bytes, .*$must" "other tokens" --tokens corpus/2 --vocabulary 65536
part differs 'rm corpus/2' "has nothing more, but rank 0 has corpus/2 of 400 bytes" "a missing file" --data corpus
part differs 'rm corpus/2' "cannot read corpus/2: No such file" "a missing file that is named" --data corpus/1 corpus/2
part differs 'echo >corpus/3' "has corpus/3 of 1 bytes, .* but rank 0 has nothing more" "an extra file" --data corpus
mkdir "$tmp/a/model"
cp "$tmp/run/model/config.json" "$tmp/a/model"
data=("$train" --length 16 --batch 2 --steps 2)
part differs 'sed -i /intermediate_size/s/16/32/ model/config.json' 'has "intermediate_size": 32, but rank 0 has "intermediate_size": 16; all ranks must see the same config.json$' \
    "another config.json" --data corpus --model model
join

# ---- resume ----

data=("$train" "${tiny[@]}" --steps 2 --save-every 2)
sed 's/350/351/' "$tmp/a/corpus/2" >"$tmp/c/2"
cp "$tmp/a/corpus/1" "$tmp/c"
mv "$tmp/a/corpus" "$tmp/moved"
alone "${data[@]}" --data "$tmp/moved" --out "$tmp/run" --resume auto --steps 4 && [ -d "$tmp/run/checkpoints/step-00000004" ]
verdict $? "the same data in another place is accepted"
state=$tmp/run/checkpoints/step-00000004/state.json
sed -i '/"data":/d; /"left_out":/d; /"split":/d; /"schedule":/d; /"options":/d; /"recipes":/d; s/\("length": [0-9]*\),/\1/' "$state"
rm "${state%/*}/manifest.json"
alone "${data[@]}" --data "$tmp/c" --out "$tmp/run" --resume auto --steps 5 && ! grep -q '"data"' "$state" &&
    grep -q '"data": "text of 1201 tokens' "$tmp/run/checkpoints/step-00000005/state.json"
verdict $? "a checkpoint of an older version, without the data's identity and the schedule, is accepted"
alone "${data[@]}" --data "$tmp/c" --out "$tmp/run" --resume auto --steps 9 --lr 2e-3 --lr-schedule linear --lr-decay 2 &&
    has_lines "$log" '^moert warning: .*step-00000005 was trained with --lr 0.001 --lr-schedule cosine .*; this run goes on with --lr 0.002 --lr-schedule linear .* --lr-decay 2$' &&
    grep -q '"schedule": "--lr 0.002 ' "$tmp/run/checkpoints/step-00000009/state.json"
verdict $? "a resume with another learning rate says so, and the checkpoint records it"
finish

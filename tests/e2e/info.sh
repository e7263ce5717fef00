#!/usr/bin/env bash
# run: all
# moert-info on 1, 2 and 3 ranks: it prints every section and all variables, ranks do not share cores if there are enough, the JSON
# is one object, and a machine without OpenCL gets a message.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-info
model=tests/golden/model/qwen3-tiny
out=$tmp/out

info() { # RANKS OPTION...: runs moert-info, with its output in $out and $log; sets and returns $status
    local ranks=$1
    shift
    timeout -k 5 120 "${MOERT_MPIRUN[@]}" -n "$ranks" "$program" "$@" >"$out" 2>"$log"
    status=$?
    return $status
}

# section TITLE: prints the lines below TITLE, up to an empty line
section() { sed -n "/^$1/,/^\$/p" "$out" | sed '1d;/^$/d'; }

cpus_of() { # RANK: prints the logical processors of the rank, one a line
    local part
    for part in $(section placement | awk -v rank="$1" '$1 == rank { print $NF }' | tr ',' ' '); do
        seq "${part%-*}" "${part#*-}"
    done
}

variables=$(sed -n 's/^ *X([a-z0-9_]*, "\(MOERT_[A-Z0-9_]*\)".*/\1/p' src/base/config.h)

for ranks in 1 2 3; do
    info "$ranks" --model "$model"
    [ $status -eq 0 ] && [ ! -s "$log" ] &&
        has_lines "$out" '^moert [0-9.]+, [^ ]' '^hosts' '^OpenCL devices' '^  \*  .* [0-9]+:[0-9]+ ' '^placement' \
            '^exchange engines' '^  +[* ] +staged +yes' '^backends' '^  +reference +yes' '^  \*  portable +yes' \
            '^tuning of GEMMs' '^  forward +f32 +panels=[0-9]+ .* kernels/gemm/tuning.txt:[0-9]+' '^memory per rank' '^ +[0-9.]+ [KM]iB +activations +[a-z]' '^  total '
    verdict $? "$ranks ranks: every section is printed"
    [ "$(section placement | wc -l)" -eq $((ranks + 1)) ] && [ "$(section "memory per" | grep -Ec '^ +[0-9]+ ')" -eq "$ranks" ]
    verdict $? "$ranks ranks: each has a line of placement and a line of memory"
    [ -n "$variables" ] && [ "$(section variables | grep -oE '^[ *]{1,5}MOERT_[A-Z0-9_]*' | tr -d ' *')" = "$variables" ]
    verdict $? "$ranks ranks: every variable is listed"
    [ "$(section 'exchange engines' | grep -c '^  \*')" -eq 1 ]
    verdict $? "$ranks ranks: one engine is marked as auto's choice"
done

info 2
if grep -q 'Portable Computing' "$out"; then
    export MOERT_DEVICE="Portable Computing"
    POCL_DEVICES="basic basic" info 2
    [ "$(section placement | grep -Ec '^ +[01] .* [0-9]+:0 ')" -eq 2 ]
    verdict $? "2 ranks: of several devices that are the CPU, both take the first"
    info 2
    [ "$(section digits | grep -Ec '^ +[01]  .* (value by value +yes +-|in tiles +yes +bf16 alone .*)$')" -eq 2 ]
    verdict $? "2 ranks: PoCL computes the digits of every driver"
    export POCL_EXTRA_BUILD_FLAGS=-cl-fast-relaxed-math MOERT_LOG=info
    MOERT_CACHE_DIR=off info 2
    [ $status -eq 0 ] && has_lines "$out" '^ +1  .* no +x / y of vectors is' && [ "$(grep -c 'info: the last digits of results may differ' "$log")" -eq 1 ]
    verdict $? "2 ranks: a driver with inexact divisions is found, and one rank logs it"
    unset POCL_EXTRA_BUILD_FLAGS MOERT_LOG MOERT_DEVICE
    info 2
fi
if section placement | grep -q ' yes  [0-9,-]*$'; then
    verdict 0 "2 ranks: disjoint cores # SKIP fewer cores than ranks"
else
    [ -n "$(cpus_of 0)" ] && [ -n "$(cpus_of 1)" ] && [ -z "$({ cpus_of 0; cpus_of 1; } | sort | uniq -d)" ]
    verdict $? "2 ranks: disjoint cores"
fi
check "2 ranks: the reason why an engine is not available is printed" has_lines "$out" '^ +local +no +it serves one rank, not 2'

export MOERT_EXCHANGE=staged MOERT_TIMEOUT_S=77
info 2 --ep 1 --model "$model" --batch 4 --length 32
has_lines "$out" '^ +\*  MOERT_TIMEOUT_S +77 +60 ' '^4 sequences of 32 tokens, experts in f32, dense layers in f32, staged exchange' 'in groups of 1 of 2 ranks'
verdict $? "variables that are set are shown and used"
unset MOERT_EXCHANGE MOERT_TIMEOUT_S
info 1 --model "$model" --precision nvfp4 --dense bf16 --dispatch mxfp8 --combine bf16 --micro-batches 2
has_lines "$out" ' tokens, experts in nvfp4, dense layers in bf16, local exchange of rows in mxfp8 and back in bf16, micro-batches in a step: 2$'
verdict $? "the recipe of the estimate is shown"

info 2 --model "$model" --json
balance() { [ "$(tr -cd "$1" <"$out" | wc -c)" -eq "$(tr -cd "$2" <"$out" | wc -c)" ]; }
[ $status -eq 0 ] && [ "$(head -c 1 "$out")" = '{' ] && [ "$(tail -n 1 "$out")" = '}' ] && [ "$(grep -c '^{' "$out")" -eq 1 ] &&
    balance '{' '}' && balance '[' ']' &&
    has_lines "$out" '"version": "' '"mpi": "' '"ranks": 2' '"topology": "' '"compute_units": [0-9]+' '"fp64": (true|false)' \
        '"confined": ' '"works": true' '"from": "' '"choices": "panels=' '"default": "portable"|"default": "auto"' '"weights": [1-9][0-9]*' '"total": [1-9][0-9]*'
verdict $? "--json prints one object"

info 3 --ep 2
[ $status -eq 2 ] && grep -q 'EP must divide' "$log" && [ ! -s "$out" ]
verdict $? "ranks that cannot form groups are bad usage"
refused 1 '^moert-info: ' "a missing model fails with one message" info 2 --model "$tmp/nothing"
mkdir "$tmp/huge"
sed -E 's/"(hidden_size|intermediate_size|num_local_experts)": *[0-9]+/"\1": 1000000/; s/"num_hidden_layers": *[0-9]+/"num_hidden_layers": 1000/' \
    "$model/config.json" >"$tmp/huge/config.json"
refused 1 'may need [0-9.]*e\+[0-9]* bytes of memory, above the limit of 9.2e18' "an estimate beyond 64 bits is refused" info 1 --model "$tmp/huge"

if [ "$(nproc)" -ge 2 ]; then
    timeout -k 5 120 "${MOERT_MPIRUN[@]/%none/core}" -n 2 "$program" >"$out" 2>"$log" &&
        grep -q 'the launcher has bound rank 0: moert keeps its ranks within that binding' "$log" &&
        [ "$(section placement | awk '$1 ~ /^[01]$/ && $6 == "yes"' | wc -l)" -eq 2 ]
    verdict $? "a CPU mask that the launcher has set is kept, and reported"
fi

# PoCL chooses its cache directory in its first call. Without moert's precautions, hwloc inside MPI would make this first call
mkdir "$tmp/home"
HOME=$tmp/home MOERT_CACHE_DIR=$tmp/chosen timeout -k 5 120 env --unset=HWLOC_COMPONENTS "$program" --model "$model" \
    >"$out" 2>"$log" && [ ! -e "$tmp/home/.cache" ]
verdict $? "without mpirun, PoCL leaves nothing in the home directory"

for name in u8 u16 i32; do
    info 1 --data "tests/golden/data/$name" --documents "$tmp/documents" &&
        cmp -s "$tmp/documents" "tests/golden/data/$name.documents" && has_lines "$out" '^format +Megatron dataset' "^documents +$(wc -l <"$tmp/documents")\$"
    verdict $? "--data $name: every document of a dataset by megatron-core is printed"
done
info 2 --data LICENSE --json && has_lines "$out" '"format": "text"' "\"tokens\": $(wc -c <LICENSE)," '"documents": 1,'
verdict $? "--data --json describes text as one object"
refused 2 '^moert-info: --documents needs --data' "--documents without --data is bad usage" info 1 --documents "$tmp/documents"
refused 1 "nowhere/file: cannot be written: No such" "a file for documents that cannot be written is named" \
    info 2 --data LICENSE --documents "$tmp/nowhere/file"

export OCL_ICD_VENDORS=$tmp/nowhere
refused 1 '^moert-info: .*no OpenCL platform' "without OpenCL it fails with a message" info 2
info 1 --help
[ $status -eq 0 ] && has_lines "$out" '^usage: ' '--json'
verdict $? "--help needs no device"
finish

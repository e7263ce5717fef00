#!/usr/bin/env bash
# run: check all
# Compares moert-layer with the golden layers of five model families. Any number of ranks and any engine give the same bytes. The
# tier all runs every case with every engine and every number of ranks. With MOERT_DEVICE=gpu every case runs on 1, 2 and 4 ranks.
. "$(dirname "$0")/../support/e2e.sh"
golden=tests/golden/layer

# layer CASE RANKS ENGINE BACKEND [OPTION...]: compares one run with the golden file, and with the bytes of the case's first run of
# the same backend. Runs with a shared expert in bf16 are compared with each other byte by byte, and with the golden file within 2
# %. Runs in which ranks sum rows before they send them are compared only with runs on the same number of ranks
layer() {
    local case=$1 count=$2 engine=$3 backend=$4 title="$*" status tolerance=2e-5 kind=$4
    [[ $title != *"--dense bf16" ]] || tolerance=2e-2 kind=bf16
    [[ ${MOERT_PUSH:-} != sum ]] || kind=sum-$count title="$title, ranks sum"
    local output=$tmp/output.safetensors first=$tmp/$1.$kind.safetensors
    shift 4
    [ "$backend" != portable ] || local -x MOERT_BF16=widened # portable sums do not depend on the CPU
    MOERT_CHUNKS=2 MOERT_EXCHANGE=$(engine "$engine") MOERT_NODE_RANKS=$(node_ranks "$engine") MOERT_BACKEND=$backend ranks "$count" "$bin/moert-layer" --model "$golden/$case" \
        --input "$golden/$case/input.safetensors" --output "$output" "$@" &&
        "$compare" tensors --expected "$golden/$case/expected.safetensors" --actual "$output" --tolerance $tolerance \
            >>"$log" 2>&1
    status=$?
    verdict $status "$title: $(tail -n 1 "$log")"
    [ $status -eq 0 ] && [[ $# -eq 0 || $kind = bf16 ]] || return
    if [ ! -e "$first" ]; then
        mv "$output" "$first"
        return
    fi
    check "$title: the bytes of the first run" cmp "$first" "$output"
}

all_of() { # CASE
    local count engine
    layer "$1" 1 local portable
    layer "$1" 1 local reference
    layer "$1" 2 window reference
    layer "$1" 4 window portable --ep 2
    layer "$1" 3 staged portable --ep 1
    layer "$1" 3 node portable
    layer "$1" 4 node portable
    for engine in window staged; do
        for count in 1 2 3 4; do
            layer "$1" "$count" "$engine" portable
        done
    done
}

some_of() { # CASE
    local case=$1 run
    case $case-${MOERT_DEVICE:-} in
    *-gpu)
        layer "$case" 1 local auto
        layer "$case" 2 staged auto
        layer "$case" 4 staged auto
        ;;
    *-skew-*)
        layer "$case" 3 window portable
        [ "$case" != olmoe-skew ] || for run in 1 2; do MOERT_PUSH=sum layer "$case" 3 window portable; done
        ;;
    *) layer "$case" 2 window portable ;;
    esac
    case $case in
    mixtral-a) layer "$case" 4 window portable --ep 2 ;;
    deepseek_v3-a)
        layer "$case" 1 local portable
        layer "$case" 4 window portable
        layer "$case" 3 node portable
        layer "$case" 4 node portable
        layer "$case" 3 staged portable
        for run in "1 local" "2 window" "3 staged"; do
            # shellcheck disable=SC2086
            layer "$case" $run portable --dense bf16
        done
        ;;
    gpt_oss-a)
        layer "$case" 4 staged portable
        layer "$case" 1 local reference
        ;;
    esac
}

which=some_of
[ "$TEST_TIER" = check ] || which=all_of
for path in "$golden"/*; do part $which "$(basename "$path")"; done
finish

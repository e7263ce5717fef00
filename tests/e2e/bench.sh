#!/usr/bin/env bash
# run: all
# bench_gemm on tiny shapes: right results and one JSON row for each line, with the rival, without it, and with all backends in a line.
# bench_op, bench_memory, bench_attention, bench_exchange and bench_layer on small sizes: every GEMM, kernel and row is right.
# train_report.py, which run-cpu and run-h200 use: it tells whether two programs had the same losses, and counts a model's FLOPs.
. "$(dirname "$0")/../support/e2e.sh"
rows=$tmp/rows.json
out=$tmp/out

bench() { # OPTION...: fills $out, $log and $status, which it returns
    timeout -k 5 120 "$bin/bench_gemm" --repeat 3 --patience 0 --json "$rows" "$@" >"$out" 2>"$log"
    status=$?
    return $status
}

# field KEY: prints its values in the JSON rows, one a line
field() { sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" "$rows"; }

all_are() { # KEY PATTERN COUNT: true if there are COUNT rows and the value of KEY matches PATTERN in each
    [ "$(field "$1" | wc -l)" -eq "$3" ] && ! field "$1" | grep -Evq "^$2\$" && return 0
    { echo "$1 of $3 rows is not $2:" && field "$1"; } >>"$log"
    return 1
}

# checked TITLE COUNT RIVAL: the verdict on the last run: COUNT right rows, in which the rival's rate matches RIVAL
checked() {
    [ $status -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq "$2" ] && all_are wrong 0 "$2" &&
        all_are gflops '[0-9.e-]*[1-9][0-9.e-]*' "$2" && all_are rival_gflops "$3" "$2" && all_are ratio "$3" "$2" &&
        all_are op '"(fprop|glu|dgrad|wgrad)"' "$2" && all_are groups '"(balanced|ragged)"' "$2" &&
        all_are dtype '"(f32|bf16)"' "$2" && all_are E 5 "$2" && all_are M 6 "$2" && all_are N 34 "$2" && all_are K 20 "$2"
    verdict $? "$1"
}

shape=(--experts 5 --rows 6 --n 34 --k 20)

bench "${shape[@]}" --rival none
checked "without the rival: every row is right, and the rival's rate is null" 16 null
check "without the rival: the header says so" grep -q '^# rival none: ' "$out"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) != 16)' "$rows" 2>"$log"
    verdict $? "the rows are a JSON array"
else
    verdict 0 "the rows are a JSON array # SKIP no python3 to read it"
fi

bench "${shape[@]}" --rival libmissing.so.0
checked "a missing library: every row is right, and the rival's rate is null" 16 null
check "a missing library: the header names it" grep -q '^# rival none: .*libmissing' "$out"

bench "${shape[@]}"
if grep -q '^# rival none' "$out"; then
    verdict 0 "with OpenBLAS # SKIP not installed"
else
    checked "with OpenBLAS: every row has a ratio" 16 '[0-9.e-]*[1-9][0-9.e-]*'
    if grep -q 'avx512vl' /proc/cpuinfo; then pattern='core SkylakeX, [1-9]'; else pattern='core [A-Za-z0-9]+, [1-9]'; fi
    OPENBLAS_CORETYPE=Haswell bench "${shape[@]}" --op fprop --dtype f32
    check "with OpenBLAS: it uses the processor's kernels, also if OPENBLAS_CORETYPE names others" grep -Eq "^# rival OpenBLAS .*$pattern" "$out"
fi

bench --suite small --rival none --op fprop --dtype f32 --groups ragged
[ $status -eq 0 ] && all_are E '[58]' 4 && all_are groups '"ragged"' 4
verdict $? "--groups ragged: the rows of a suite have at least five experts and the word ragged"

bench "${shape[@]}" --compare-backends --op wgrad --groups ragged
[ $status -eq 0 ] && [ "$(grep -c 'reference.*portable' "$out")" -eq 2 ] && all_are wrong 0 4
verdict $? "--compare-backends: one line a dtype with both backends, all right"

timeout -k 5 120 "$bin/bench_op" --epilogues --groups balanced --experts 3 --rows 40 --n 64 --k 48 >"$out" 2>"$log"
[ $? -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq 14 ] && ! grep -v '^#' "$out" | grep -vq ' 0$'
verdict $? "bench_op --epilogues: 14 GEMMs with epilogues, all right"

timeout -k 5 120 "$bin/bench_memory" --small --json "$rows" >"$out" 2>"$log"
status=$?
kernels=$(grep -vc '^#' "$out")
[ $status -eq 0 ] && [ "$kernels" -ge 38 ] && all_are wrong 0 "$kernels" && all_are gbps '[0-9.e-]*[1-9][0-9.e-]*' "$kernels" &&
    all_are share '[0-9.e-]*[1-9][0-9.e-]*' "$kernels"
verdict $? "bench_memory: every kernel's result is right, and has a rate and its ratio to a copy's"

attended() { # TITLE ROWS OPTION...: bench_attention gives ROWS right rows, each with a rate and its ratios to the first form's
    timeout -k 5 120 "$bin/bench_attention" --sequences 2 --length 70 --heads 5 --kv-heads 1 --head-size 16 --json "$rows" "${@:3}" >"$out" 2>"$log"
    [ $? -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq "$2" ] && all_are wrong false "$2" && all_are tflops '[0-9.e-]*[1-9][0-9.e-]*' "$2" &&
        all_are time_ratio '[0-9.e-]*[1-9][0-9.e-]*' "$2"
    verdict $? "bench_attention: $1"
}
attended 'all forms are right, in both dtypes' 20 --compare
attended 'values of another size, a window and sinks within documents are right' 2 --dtype f32 --value-size 24 --window 9 --documents 40 --sinks
alone "$bin/bench_attention" --heads 5 --kv-heads 2
[ $? -eq 2 ] && grep -q '5 query heads cannot share 2 key and value heads' "$log"
verdict $? "bench_attention: heads that do not divide are refused with a reason"

exchanged() { # TITLE RANKS ROWS RIVAL OPTION...: bench_exchange gives ROWS right rows, with a rate and a rival that matches RIVAL
    ranks "$2" "$bin/bench_exchange" --tokens 70 --hidden 48 --experts 6 --repeat 3 --json "$rows" "${@:5}"
    [ $? -eq 0 ] && all_are wrong 0 "$3" && all_are ranks "$2" "$3" && all_are gbps '[0-9.e-]*[1-9][0-9.e-]*' "$3" &&
        all_are us_min '[0-9.e-]+' "$3" && all_are us_p99 '[0-9.e-]+' "$3" && all_are op '"(dispatch|combine)"' "$3" && all_are rival "$4" "$3"
    verdict $? "bench_exchange: $1"
}
for skew in balanced zipf hot one; do
    exchanged "$skew, through windows, against packed messages: every element is right" 2 2 '"packed MPI_Alltoallv.*"' --skew $skew --engine window
done
exchanged "bf16 through windows" 2 2 '"packed MPI_Alltoallv.*"' --dtype bf16 --engine window
exchanged "bf16 through host buffers on 3 ranks" 3 2 '"packed MPI_Alltoallv.*"' --dtype bf16 --engine staged
MOERT_NODE_RANKS=2 exchanged "sums without weights, first those of another node, on 4 ranks" 4 2 '"packed MPI_Alltoallv.*"' --no-weights --engine node
exchanged "rows of MXFP8 on one rank, without the rival" 1 1 null --dtype mxfp8 --no-rival
for how in '--precision f32 --ep 1' '--precision bf16 --dispatch bf16 --combine bf16'; do
    ranks 2 "$bin/bench_layer" --tokens 60 --hidden 48 --intermediate 40 --experts 6 --repeat 1 --json "$rows" $how
    [ $? -eq 0 ] && all_are wrong false 2 && all_are op '"forward(.backward)?"' 2 &&
        all_are gflops '[0-9.e-]*[1-9][0-9.e-]*' 2
    verdict $? "bench_layer $how: y and dx of sampled tokens are those of float64"
done
alone "$bin/bench_exchange" --topk 9 --experts 8
[ $? -eq 2 ] && grep -q 'bench_exchange: --topk is 9' "$log" && alone "$bin/bench_exchange" --skew half
[ $? -eq 2 ] && grep -q 'bench_exchange: --skew half: expected balanced|zipf' "$log"
verdict $? "bench_exchange: a --topk above --experts and an unknown --skew are refused with a reason"

losses() { # FILE LOSS: writes metrics of four steps, the third with this loss
    for loss in 5.5 5.25 "$2" 4.75; do
        echo "{\"step\": 0, \"loss\": $loss, \"aux_loss\": 2.0, \"grad_norm\": 1.5, \"tokens_per_s\": 100}"
    done >"$1"
}
compare() { # LOSS: compares a run whose third loss is 5 with one whose third loss is LOSS
    losses "$tmp/ours" 5.0
    losses "$tmp/theirs" "$1"
    bench/train_report.py compare --title test --row "$tmp/row" --ours "$tmp/ours" --against other "$tmp/theirs" >"$log" 2>&1
}
if command -v python3 >/dev/null; then
    check "run-cpu: losses that differ only by rounding are accepted" compare 5.0001
    ! compare 5.002 && grep -q WRONG "$log"
    verdict $? "run-cpu: a loss that is off by 4e-4 is refused"
    losses "$tmp/ours" 5.0
    bench/train_report.py compare --title test --row "$tmp/row" --ours "$tmp/ours" --against other "$tmp/ours" \
        --model tests/golden/model/qwen3-tiny --length 31 --gemm-tflops 0.001 >"$log" 2>&1
    # a token is multiplied by 24576 weights of projections, 1024 of the router and 49152 of four experts in each of 2 layers, and 16384
    # of the head. It attends to 16 others in 4 heads of size 32: 2 x 4096 FLOPs in each layer, twice. 3 x (2 x 165888 + 2 x 8192)
    grep -q '^  0.001 GFLOP a token; of a GEMM.s 0 TFLOP/s: moert-train 10.4 %, other 10.4 %$' "$log" &&
        grep -q '"gflop_per_token": 0.00104448,' "$tmp/row"
    verdict $? "run-h200: a model's FLOPs are those of its weights and of attention"
else
    verdict 0 "run-cpu: losses are compared # SKIP no python3"
fi

refused 2 'bench_gemm: --n 33 is odd' "an odd N is refused with a reason" bench --n 33

finish

#!/usr/bin/env bash
# bench_gemm on tiny shapes: right results, one JSON row for each line, with the rival and without it; all backends side by side.
# bench_op, bench_memory, bench_exchange, bench_layer on small sizes: right results of every product, kernel and row. run-cpu: whether both sides computed the same.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
rows=$folder/rows.json
out=$folder/out

bench() { # OPTION...: fills out, log and `status`, which it returns
    timeout -k 5 120 "$bin/bench_gemm" --repeat 3 --patience 0 --json "$rows" "$@" >"$out" 2>"$log"
    status=$?
    return $status
}

# field KEY: its values in the file of rows, one a line
field() { sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" "$rows"; }

all_are() { # KEY PATTERN COUNT: so many rows, each with such a value
    [ "$(field "$1" | wc -l)" -eq "$3" ] && ! field "$1" | grep -Evq "^$2\$" && return 0
    { echo "$1 of $3 rows is not $2:" && field "$1"; } >>"$log"
    return 1
}

# checked TITLE COUNT RIVAL: the last run gave COUNT right rows, whose rates of the rival look like RIVAL
checked() {
    [ $status -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq "$2" ] && all_are wrong 0 "$2" &&
        all_are gflops '[0-9.e-]*[1-9][0-9.e-]*' "$2" && all_are rival_gflops "$3" "$2" && all_are ratio "$3" "$2" &&
        all_are op '"(fprop|glu|dgrad|wgrad)"' "$2" && all_are groups '"(balanced|ragged)"' "$2" &&
        all_are dtype '"(f32|bf16)"' "$2" && all_are E 5 "$2" && all_are M 6 "$2" && all_are N 34 "$2" && all_are K 20 "$2"
    verdict $? "$1"
}

shape=(--experts 5 --rows 6 --n 34 --k 20)

bench "${shape[@]}" --rival none
checked "without the rival: every row is right and says that there is no rate of it" 16 null
check "without the rival: the header says so" grep -q '^# rival none: ' "$out"
if command -v python3 >/dev/null; then
    python3 -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) != 16)' "$rows" 2>"$log"
    verdict $? "the rows are a JSON array"
else
    verdict 0 "the rows are a JSON array # SKIP no python3 to read it"
fi

bench "${shape[@]}" --rival libmissing.so.0
checked "a library that is not there: the same" 16 null
check "a library that is not there: the header names it" grep -q '^# rival none: .*libmissing' "$out"

bench "${shape[@]}"
if grep -q '^# rival none' "$out"; then
    verdict 0 "with OpenBLAS # SKIP there is none"
else
    checked "with OpenBLAS: every row has a ratio" 16 '[0-9.e-]*[1-9][0-9.e-]*'
    if grep -q 'avx512vl' /proc/cpuinfo; then pattern='core SkylakeX, [1-9]'; else pattern='core [A-Za-z0-9]+, [1-9]'; fi
    OPENBLAS_CORETYPE=Haswell bench "${shape[@]}" --op fprop --dtype f32
    check "with OpenBLAS: its kernels are the processor's, whatever the environment asks for" grep -Eq "^# rival OpenBLAS .*$pattern" "$out"
fi

bench --suite small --rival none --op fprop --dtype f32 --groups ragged
[ $status -eq 0 ] && all_are E '[58]' 4 && all_are groups '"ragged"' 4
verdict $? "ragged rows of a suite have at least five experts, and say so"

bench "${shape[@]}" --compare-backends --op wgrad --groups ragged
[ $status -eq 0 ] && [ "$(grep -c 'reference.*portable' "$out")" -eq 2 ] && all_are wrong 0 4
verdict $? "the backends side by side: one line for each, right"

timeout -k 5 120 "$bin/bench_op" --epilogues --groups balanced --experts 3 --rows 40 --n 64 --k 48 >"$out" 2>"$log"
[ $? -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq 14 ] && ! grep -v '^#' "$out" | grep -vq ' 0$'
verdict $? "bench_op --epilogues: 14 GEMMs with what follows them, all right"

timeout -k 5 120 "$bin/bench_memory" --small --json "$rows" >"$out" 2>"$log"
status=$?
kernels=$(grep -vc '^#' "$out")
[ $status -eq 0 ] && [ "$kernels" -ge 38 ] && all_are wrong 0 "$kernels" && all_are gbps '[0-9.e-]*[1-9][0-9.e-]*' "$kernels" &&
    all_are share '[0-9.e-]*[1-9][0-9.e-]*' "$kernels"
verdict $? "bench_memory: every kernel's result is right, and has a rate beside the copy's"

exchanged() { # TITLE RANKS ROWS RIVAL OPTION...: right rows of the JSON file, with a rate and such a rival
    ranks "$2" "$bin/bench_exchange" --tokens 70 --hidden 48 --experts 6 --repeat 3 --json "$rows" "${@:5}"
    [ $? -eq 0 ] && all_are wrong 0 "$3" && all_are ranks "$2" "$3" && all_are gbps '[0-9.e-]*[1-9][0-9.e-]*' "$3" &&
        all_are us_min '[0-9.e-]+' "$3" && all_are us_p99 '[0-9.e-]+' "$3" && all_are op '"(dispatch|combine)"' "$3" && all_are rival "$4" "$3"
    verdict $? "bench_exchange: $1"
}
for skew in balanced zipf hot one; do
    exchanged "$skew, through windows and packed messages: every element is right" 2 2 '"packed MPI_Alltoallv.*"' --skew $skew --engine window
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
verdict $? "bench_exchange: more experts for a token than there are, a skew that there is not: refused with a reason"

losses() { # FILE LOSS: metrics of four steps, the third with this loss
    for loss in 5.5 5.25 "$2" 4.75; do
        echo "{\"step\": 0, \"loss\": $loss, \"aux_loss\": 2.0, \"grad_norm\": 1.5, \"tokens_per_s\": 100}"
    done >"$1"
}
compare() { # LOSS: of the other side, whose third loss is 5 on ours
    losses "$folder/ours" 5.0
    losses "$folder/theirs" "$1"
    bench/train_report.py compare --title test --row "$folder/row" --ours "$folder/ours" --against other "$folder/theirs" >"$log" 2>&1
}
if command -v python3 >/dev/null; then
    check "run-cpu: losses that differ by rounding alone are accepted" compare 5.0001
    ! compare 5.002 && grep -q WRONG "$log"
    verdict $? "run-cpu: a loss that is off by 4e-4 is refused"
    losses "$folder/ours" 5.0
    bench/train_report.py compare --title test --row "$folder/row" --ours "$folder/ours" --against other "$folder/ours" \
        --model tests/golden/model/qwen3-tiny --length 31 --gemm-tflops 0.001 >"$log" 2>&1
    # a token meets 24576 weights of projections, 1024 of the router, 49152 of four experts in each of 2 layers, 16384 of the head, and
    # attends to 16 others in 4 heads of 32 numbers, twice 8192 FLOPs in each layer: 3 x (2 x 165888 + 2 x 8192)
    grep -q '^  0.001 GFLOP a token; of a GEMM.s 0 TFLOP/s: moert-train 10.4 %, other 10.4 %$' "$log" &&
        grep -q '"gflop_per_token": 0.00104448,' "$folder/row"
    verdict $? "run-h200: a model's FLOPs are those of its weights and of attention"
else
    verdict 0 "run-cpu: losses are compared # SKIP no python3"
fi

refused 2 'bench_gemm: --n 33 is odd' "an odd N is refused with a reason" bench --n 33

finish

#!/usr/bin/env bash
# run: all
# bench_gemm on tiny shapes: its results are right and each printed line has a JSON row; with the rival, without the rival, and
# with all backends in one line. bench_op, bench_memory, bench_attention, bench_exchange and bench_layer on small sizes: the
# results of every GEMM, kernel and exchange are right. train_report.py, which run-cpu and run-h200 use, tells whether two
# programs had the same losses, and computes a model's FLOPs.
. "$(dirname "$0")/../support/e2e.sh"
rows=$tmp/rows.json
out=$tmp/out

# field KEY: prints the values of KEY in the JSON rows, one per line
field() { sed -n "s/^ *\"$1\": \(.*[^,]\),*\$/\1/p" "$rows"; }

# right TITLE COUNT "KEY=PATTERN..." COMMAND...: prints the verdict on COMMAND, which must write COUNT rows to $rows and, without
# mpirun, COUNT lines to $out. In each row the value of KEY must match PATTERN
number='[0-9.e-]*[1-9][0-9.e-]*'
right() {
    local pair ok=0
    rm -f "$rows"
    "${@:4}" >"$out" 2>"$log" && { [ ! -s "$out" ] || [ "$(grep -vc '^#' "$out")" -eq "$2" ]; } || ok=1
    for pair in $3; do
        [ "$(field "${pair%%=*}" | wc -l)" -eq "$2" ] && ! field "${pair%%=*}" | grep -Evq "^${pair#*=}\$" && continue
        { echo "not $2 rows with $pair:" && field "${pair%%=*}"; } >>"$log"
        ok=1
    done
    verdict $ok "$1"
}
bench() { timeout -k 5 120 "$bin/bench_$1" "${@:2}"; }

gemm=(bench gemm --repeat 3 --patience 0 --json "$rows") shape=(--experts 5 --rows 6 --n 34 --k 20)
usual="wrong=0 gflops=$number op=\"(fprop|glu|dgrad|wgrad)\" groups=\"(balanced|ragged)\" dtype=\"(f32|bf16)\" E=5 M=6 N=34 K=20"
for rival in none libmissing.so.0; do
    right "rival $rival: every row is right, and the rival's rate is null" 16 "$usual rival_gflops=null ratio=null" \
        "${gemm[@]}" "${shape[@]}" --rival $rival
    check "the header says so" grep -q "^# rival none: .*${rival#none}" "$out"
done
if command -v python3 >/dev/null; then
    check "the rows are a JSON array" python3 -c 'import json, sys; sys.exit(len(json.load(open(sys.argv[1]))) != 16)' "$rows"
else
    verdict 0 "the rows are a JSON array # SKIP no python3 to read it"
fi
"${gemm[@]}" "${shape[@]}" >"$out" 2>"$log"
if grep -q '^# rival none' "$out"; then
    verdict 0 "with OpenBLAS # SKIP not installed"
else
    right "with OpenBLAS: every row has a ratio" 16 "$usual rival_gflops=$number ratio=$number" "${gemm[@]}" "${shape[@]}"
    if grep -q 'avx512vl' /proc/cpuinfo; then pattern='core SkylakeX, [1-9]'; else pattern='core [A-Za-z0-9]+, [1-9]'; fi
    OPENBLAS_CORETYPE=Haswell "${gemm[@]}" "${shape[@]}" --op fprop --dtype f32 >"$out" 2>"$log"
    check "with OpenBLAS: it uses the processor's kernels, also if OPENBLAS_CORETYPE names others" grep -Eq "^# rival OpenBLAS .*$pattern" "$out"
fi
right "--groups ragged: the rows of a suite have at least five experts and the word ragged" 4 'E=[58] groups="ragged"' \
    "${gemm[@]}" --suite small --rival none --op fprop --dtype f32 --groups ragged
"${gemm[@]}" "${shape[@]}" --compare-backends --op wgrad --groups ragged >"$out" 2>"$log"
[ $? -eq 0 ] && [ "$(grep -c 'reference.*portable' "$out")" -eq 2 ] && [ "$(field wrong | sort | uniq -c)" = '      4 0' ]
verdict $? "--compare-backends: one line a dtype with both backends, all right"

bench op --epilogues --groups balanced --experts 3 --rows 40 --n 64 --k 48 >"$out" 2>"$log"
[ $? -eq 0 ] && [ "$(grep -vc '^#' "$out")" -eq 14 ] && ! grep -v '^#' "$out" | grep -vq ' 0$'
verdict $? "bench_op --epilogues: 14 GEMMs with epilogues, all right"
bench memory --small >"$out"
kernels=$(grep -vc '^#' "$out")
[ "$kernels" -ge 38 ]
verdict $? "bench_memory has $kernels kernels"
right "bench_memory: every kernel's result is right, and has a rate and its ratio to a copy's" "$kernels" \
    "wrong=0 gbps=$number share=$number" bench memory --small --json "$rows"

judged="wrong=false tflops=$number time_ratio=$number"
attention=(bench attention --sequences 2 --length 70 --heads 5 --kv-heads 1 --head-size 16 --json "$rows")
right 'bench_attention: all forms are right, in both dtypes' 20 "$judged" "${attention[@]}" --compare
right 'bench_attention: values of another size, a window and sinks within documents are right' 2 "$judged" \
    "${attention[@]}" --dtype f32 --value-size 24 --window 9 --documents 40 --sinks
ends 2 '5 query heads cannot share 2 key and value heads' "bench_attention: heads that do not divide are refused with a reason" \
    alone "$bin/bench_attention" --heads 5 --kv-heads 2

exchanged() { # TITLE RANKS ROWS RIVAL OPTION...: bench_exchange gives ROWS right rows, with a rate and a rival that matches RIVAL
    right "bench_exchange: $1" "$3" "wrong=0 ranks=$2 gbps=$number us_min=[0-9.e-]+ us_p99=[0-9.e-]+ op=\"(dispatch|combine)\" rival=$4" \
        ranks "$2" "$bin/bench_exchange" --tokens 70 --hidden 48 --experts 6 --repeat 3 --json "$rows" "${@:5}"
}
packed='"packed.MPI_Alltoallv.*"'
for skew in balanced zipf hot one; do
    exchanged "$skew, through windows, against packed messages: every element is right" 2 2 "$packed" --skew $skew --engine window
done
exchanged "bf16 through windows" 2 2 "$packed" --dtype bf16 --engine window
exchanged "bf16 through host buffers on 3 ranks" 3 2 "$packed" --dtype bf16 --engine staged
MOERT_NODE_RANKS=2 exchanged "sums without weights, first those of another node, on 4 ranks" 4 2 "$packed" --no-weights --engine node
exchanged "rows of MXFP8 on one rank, without the rival" 1 1 null --dtype mxfp8 --no-rival
for how in '--precision f32 --ep 1' '--precision bf16 --dispatch bf16 --combine bf16' '--precision nvfp4'; do
    right "bench_layer $how: y and dx of sampled tokens are those of float64" 2 "wrong=false op=\"forward(.backward)?\" gflops=$number" \
        ranks 2 "$bin/bench_layer" --tokens 60 --hidden 48 --intermediate 40 --experts 6 --repeat 1 --json "$rows" $how
done
ends 2 'bench_exchange: --topk is 9' "bench_exchange: a --topk above --experts is refused" alone "$bin/bench_exchange" --topk 9 --experts 8
ends 2 'bench_exchange: --skew half: expected balanced\|zipf' "bench_exchange: an unknown --skew is refused" \
    alone "$bin/bench_exchange" --skew half

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
    # of the head. A token attends to 16 tokens in 4 heads of size 32: 2 x 4096 FLOPs for the scores and 2 x 4096 for the values,
    # in each layer. FLOPs of a token in a step: 3 x (2 x 165888 + 2 x 8192)
    grep -q '^  0.001 GFLOP a token; of a GEMM.s 0 TFLOP/s: moert-train 10.4 %, other 10.4 %$' "$log" &&
        grep -q '"gflop_per_token": 0.00104448,' "$tmp/row"
    verdict $? "run-h200: a model's FLOPs are those of its weights and of attention"
else
    verdict 0 "run-cpu: losses are compared # SKIP no python3"
fi

refused 2 'bench_gemm: --n 33 is odd' "an odd N is refused with a reason" logged "${gemm[@]}" --n 33

finish

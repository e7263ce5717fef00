#!/usr/bin/env bash
# run: check all
# Training gives the same losses and checkpoint bytes on any number of ranks and any engine, also across a resume, and with exact
# replicas of the experts. With summed replicas, two runs on the same ranks give the same bits, and the losses agree with those
# without replicas within 1e-5. The tier check runs the table of pairs of settings; the tier all runs every setting separately.
. "$(dirname "$0")/../support/e2e.sh"

all=$tmp # shared by all parts
small=(--hidden 64 --intermediate 96 --heads 4 --layers 2 --experts 8)
common=(--data LICENSE tests/golden/README.md --length 64 --eval-sequences 6 --lr 3e-3 --warmup 5 --log-every 0 --seed 7)

# train NAME RANKS ENGINE OPTION...: trains a small model, or the model that --model names, in the run directory NAME
train() {
    local name=$1 count=$2 engine=$3 sizes=("${small[@]}")
    shift 3
    [[ " $* " != *" --model "* ]] || sizes=()
    MOERT_CHUNKS=2 MOERT_EXCHANGE=$(engine "$engine") MOERT_NODE_RANKS=$(node_ranks "$engine") ranks "$count" "$bin/moert-train" "${sizes[@]}" "${common[@]}" --out "$all/$name" "$@"
}

# train_steps NAME RANKS ENGINE N OPTION...: calls `train` for N steps, with a checkpoint and an evaluation after the last step
train_steps() { train "$1" "$2" "$3" --steps "$4" --save-every "$4" --eval-every "$4" "${@:5}"; }

# The trainings, by name: their steps and options
gpt_oss='--form gpt-oss --kv-heads 2 --experts 6' moves='--aux-coef 0 --rebalance 3 --spare-slots 2' micro='--batch 6 --micro-batches 2'
clones='8 --batch 8 --micro-batches 2 --experts 4 --aux-coef 0 --rebalance 2 --spare-slots 2 --clones --precision'
states='--kv-heads 2 --experts 6 --aux-coef 0 --rebalance 3 --spare-slots 1 --moments bf16 --gradients bf16'
qwen3='--form qwen3-moe --kv-heads 2'
# all of NVFP4's recipe in both layers, and a finish in bf16; the recipe itself keeps the last layer in bf16
cat >"$all/recipe.json" <<'END'
{"x": "nvfp4", "weight": "nvfp4 tiles", "dy": "nvfp4 stochastic", "wgrad_x": "nvfp4 hadamard", "wgrad_dy": "nvfp4 hadamard stochastic",
 "bf16_finish": 0.3}
END
sed 's/^{/{"attention": true, /' "$all/recipe.json" >"$all/attention.json" # also in the projections of attention
declare -A variants=(
    [mixtral]='30 --batch 8'
    [epochs]='30 --batch 8 --order epochs'
    [blend]='10 --batch 5 --order epochs --split 8,1,1'
    [devices-wait]='10 --batch 6'
    [micro-batches]='10 --batch 8 --micro-batches 2 --z-coef 1e-3'
    [uneven]='10 --batch 6'
    [few]='6 --batch 2 --aux-form megatron'
    [sequence-loss]="6 $micro --aux-form sequence --aux-coef 0.1"
    [qwen3]="10 --batch 5 $qwen3 --topk 3 --experts 10"
    [gpt-oss]="6 --batch 5 $gpt_oss"
    [balanced]='4 --batch 6 --form qwen3-moe --length 256 --balanced-routing'
    # experts that move between ranks, with checkpoints on the way
    [moving-f32]="10 $micro --experts 10 $moves --precision f32"
    [moving-nvfp4]="10 $micro --experts 10 $moves --precision $all/recipe.json"
    [moving-gpt-oss]="6 --batch 5 $gpt_oss --rebalance 2"
    # several ranks compute an expert together
    [cloned-f32]="$clones f32"
    [cloned-bf16]="$clones bf16"
    [cloned-fp8]="$clones fp8"
    [cloned-nvfp4]="$clones $all/recipe.json"
    [cloned-gpt-oss]="6 --batch 6 $gpt_oss --rebalance 2 --spare-slots 2 --clones"
    # optimizer states in bf16, whose bits do not depend on the placement of the experts
    [states-qwen3-moe]="10 --batch 6 --micro-batches 3 --form qwen3-moe $states"
    [states-gpt-oss]="10 --batch 6 --micro-batches 3 --form gpt-oss $states"
    # the recipes of low precision
    [bf16]="4 $micro --precision bf16"
    [mxfp8]="4 $micro --precision mxfp8"
    [fp8]="4 $micro --precision fp8"
    [nvfp4-plain]="4 $micro --precision nvfp4-plain"
    [nvfp4]="4 $micro --precision $all/recipe.json"
    [nvfp4-gpt-oss]="4 $micro --precision nvfp4 --form gpt-oss --kv-heads 2"
    [shared-nvfp4]="4 $micro --length 72 --precision $all/recipe.json --form deepseek-v3 --head-size 16"
    [gated-nvfp4]="4 $micro --length 72 --precision $all/recipe.json --form qwen2-moe --kv-heads 2"
    [attention-mla]="4 $micro --length 72 --precision $all/attention.json --form deepseek-v3 --head-size 16"
    [attention-gqa]="4 $micro --length 72 --precision $all/attention.json --form qwen2-moe --kv-heads 2 --dense bf16"
    [dense-f32]="4 $micro $qwen3 --dense bf16 --dispatch bf16 --precision f32"
    [dense-bf16]="4 $micro $qwen3 --dense bf16 --dispatch bf16 --precision bf16"
    [mxfp8-dispatch]='4 --batch 6 --hidden 72 --dispatch mxfp8'
    [bf16-pushed]="4 $micro --hidden 72 --precision bf16 --dispatch bf16 --combine bf16"
    [bf16-combine]='4 --batch 6 --hidden 72 --precision bf16 --dispatch bf16 --combine bf16'
    [tied]="6 --batch 5 --model $all/tied"
    [tied-dense]="4 --batch 5 --model $all/tied --dense bf16"
)

# variant NAME RUN RANKS ENGINE OPTION...: calls train_steps for the training NAME of the table above, in the run directory RUN
# shellcheck disable=SC2086
variant() { train_steps "$2" "$3" "$4" ${variants[$1]} "${@:5}"; }

# invariant VARIANT "RANKS ENGINE"...: checks that every run has the bits of the first run
invariant() {
    local run first=$1-${2/ /-}
    for run in "${@:2}"; do
        # shellcheck disable=SC2086
        variant "$1" "$1-${run/ /-}" $run
        local status=$?
        if [ "$run" = "$2" ]; then
            verdict $status "$1: $run runs: $(tail -n 1 "$all/$first/metrics.jsonl" 2>/dev/null | cut -c 1-40)"
            continue
        fi
        [ $status -eq 0 ] && "${alike:-same_run}" "$all/$first" "$all/$1-${run/ /-}"
        verdict $? "$1: $run gives the ${kept:-bits} of $2"
    done
}

# Calls invariant with a blend in a JSON file. Checks that the same blend, given as text in the option, gives the same numbers,
# also for each source.
blended() { # "RANKS ENGINE"...
    local name=blend-${1/ /-}
    mkdir -p "$all/blend" && cp -r docs "$all/blend/docs" && echo "{\"$PWD/LICENSE\": 0.7, \"docs\": 0.3}" >"$all/blend/blend.json"
    common=(--data "$all/blend/blend.json" "${common[@]:3}")
    invariant blend "$@"
    common[1]="0.7 LICENSE 0.3 docs"
    variant blend words 2 window &&
        diff <(digits "$all/words") <(digits "$all/$name" | sed "s#_loss$all/blend/#_loss/#g; s#_loss$PWD/#_loss/#g") >>"$log" 2>&1
    verdict $? "blend in words gives the numbers of that in a file"
    for use in heldout test; do
        tail -n 1 "$all/words/metrics.jsonl" | grep -q "\"${use}_loss\": .*\"${use}_loss/LICENSE\": [0-9.]*, \"${use}_loss/docs\": [0-9.]*"
        verdict $? "a blend has ${use} losses, also of each source"
    done
}

losses_near() { # RUN RUN: true if the losses of every step agree within 1e-5
    paste <(sed 's/.*"loss": \([^,]*\),.*/\1/' "$1/metrics.jsonl") <(sed 's/.*"loss": \([^,]*\),.*/\1/' "$2/metrics.jsonl") |
        awk '{ d = ($1 - $2) / $2; if (d < 0) d = -d; if (!(d <= worst)) worst = d; n++ }
            END { printf "worst %.2g of %d steps\n", worst, n; exit !(n > 0 && worst <= 1e-5) }' >>"$log"
}

# resumed NAME: checks that a run on 3 ranks, resumed on 4 ranks after half the steps, has the bits of the run NAME-1-local
resumed() {
    local reference=$all/$1-1-local run=resumed-$1 whole=$all/uninterrupted-$1 steps=${variants[$1]%% *}
    variant "$1" "$run" 3 window --save-every $((steps / 2)) &&
        mv "$all/$run/checkpoints"/*"$steps" "$whole" &&
        MOERT_LOG=info variant "$1" "$run" 4 window --resume auto &&
        grep -q "resumed from .* at step $((steps / 2))" "$log" &&
        diff -r "$whole" "$all/$run/checkpoints"/*"$steps" >>"$log" 2>&1 &&
        diff -r "$whole" "$reference/checkpoints"/*"$steps" >>"$log" 2>&1 &&
        diff <(digits "$all/$run") <(digits "$reference") >>"$log" 2>&1
    verdict $? "$run: half the $steps steps on 3 ranks and half on 4 give the bits of all on 1"
}

# gpu_form NAME: checks that kernels of the portable backend give the same bits in GPU form and in CPU form, also on CPUs that
# otherwise sum in AMX tiles. Only CPU devices run both forms
gpu_form() {
    [ "${MOERT_DEVICE:-}" != gpu ] || return
    unset MOERT_BF16
    export MOERT_BACKEND=portable
    variant "$1" "form-cpu-$1" 1 local && MOERT_FORM=gpu variant "$1" "form-gpu-$1" 1 local &&
        same_run "$all/form-cpu-$1" "$all/form-gpu-$1"
    verdict $? "$1: kernels in GPU form give the bits of those in CPU form"
}

# The table of pairs, for the tier check. Every two values of two columns occur together in some row, unless they exclude each
# other; uncovered() checks this
pairs() {
    cat <<'END'
ranks engine precision dense dispatch combine form micro experts recompute states sync push order resume optimizer
2 window bf16 f32 mxfp8 bf16 gpt-oss 1 move none f32 device on epochs no adamw
4 staged nvfp4 bf16 bf16 f32 qwen3-moe 1 clones experts bf16 host off stream yes sgd
3 node mxfp8 f32 f32 bf16 mixtral 2 fixed layer f32 host off stream yes adamw
3 window f32 bf16 bf16 f32 mixtral 3 fixed layer bf16 device on epochs no sgd
2 staged f32 bf16 f32 f32 gpt-oss 2 exact none bf16 host off stream no sgd
4 window nvfp4 f32 f32 bf16 qwen3-moe 3 exact experts f32 device on epochs yes adamw
4 node mxfp8 bf16 mxfp8 f32 gpt-oss 3 move experts bf16 host off epochs no sgd
2 window bf16 bf16 mxfp8 f32 qwen3-moe 2 clones layer f32 device on stream yes sgd
3 staged bf16 f32 mxfp8 bf16 mixtral 3 clones none bf16 host off epochs no sgd
4 node f32 f32 bf16 bf16 qwen3-moe 2 move none f32 host off epochs yes sgd
3 staged nvfp4 bf16 f32 bf16 gpt-oss 1 move layer f32 host off stream yes adamw
2 window nvfp4 f32 mxfp8 f32 mixtral 2 fixed experts f32 device off epochs no sgd
2 window mxfp8 f32 bf16 bf16 mixtral 1 exact layer f32 host on stream no adamw
4 node bf16 bf16 f32 bf16 qwen3-moe 1 fixed experts bf16 host off epochs no sgd
2 staged mxfp8 bf16 bf16 f32 gpt-oss 3 fixed none bf16 host off stream no sgd
3 node f32 f32 mxfp8 f32 qwen3-moe 1 clones experts bf16 host off stream no adamw
4 node bf16 bf16 mxfp8 bf16 mixtral 3 exact layer bf16 host off stream no sgd
4 window mxfp8 f32 f32 bf16 qwen3-moe 1 clones layer bf16 device on epochs no sgd
4 node nvfp4 f32 bf16 bf16 gpt-oss 2 clones none bf16 host off stream yes adamw
2 window bf16 bf16 bf16 bf16 mixtral 1 move experts f32 host on stream yes sgd
END
}

uncovered() { # prints the pairs of values that could occur together in a row of pairs, but do not
    pairs | awk '
        function excluded(a, b) {
            return (a b) ~ /engine=(node|staged)(sync=device|push=on)|ranks=2engine=node|ranks=3experts=exact/
        }
        NR == 1 { columns = split($0, name); next }
        {
            for (i = 1; i <= columns; i++) {
                value[i, $i]
                for (j = i + 1; j <= columns; j++) met[i, $i, j, $j]
            }
        }
        END {
            for (x in value)
                for (y in value) {
                    split(x, a, SUBSEP)
                    split(y, b, SUBSEP)
                    if (a[1] < b[1] && !((x SUBSEP y) in met) && !excluded(name[a[1]] "=" a[2], name[b[1]] "=" b[2]))
                        print name[a[1]] "=" a[2], name[b[1]] "=" b[2]
                }
        }'
}

# A row of pairs: its 4 steps must have the bits of a run on 1 rank without the row's settings, which must not change bits. After
# a resume on another number of ranks, the steps must have the same bits
pair() { # RANKS ENGINE PRECISION DENSE DISPATCH COMBINE FORM MICRO EXPERTS RECOMPUTE STATES SYNC PUSH ORDER RESUME OPTIMIZER
    local run same free=() other=3
    run=pair-$(tr ' ' - <<<"$*")
    same=(--batch 6 --micro-batches "$8" --precision "$3" --dense "$4" --dispatch "$5" --combine "$6" --form "$7" --moments "${11}" --gradients "${11}"
        --aux-coef 0 --z-coef 1e-3 --optimizer "${16}")
    [ "$7" = mixtral ] || same+=(--kv-heads 2)
    [ "${14}" = stream ] || same+=(--order "${14}")
    case $9 in
    move) same+=(--rebalance 1 --spare-slots 2) ;;
    clones) same+=(--rebalance 1 --spare-slots 2 --clones) ;;
    exact) free+=(--replicas exact --ep $(($1 / 2))) ;;
    esac
    free+=(--recompute "${10}")
    [ "$1" -ne 3 ] || other=2
    train_steps "$run-1" 1 local 4 "${same[@]}" || return
    MOERT_SYNC=${12} MOERT_PUSH=${13} train_steps "$run" "$1" "$2" 4 "${same[@]}" "${free[@]}" --save-every 2 || return
    if [ "${15}" = yes ]; then
        rm -r "$all/$run/checkpoints"/*4 || return
        MOERT_LOG=info train_steps "$run" $other window 4 "${same[@]}" --ep 0 --resume auto && has_lines "$log" 'resumed from .* at step 2' || return
    fi
    [ "$9" != move ] || has_lines "$all/$run/metrics.jsonl" '"moved_experts": [1-9]' || return
    rm -r "$all/$run/checkpoints"/*2 && same_run "$all/$run-1" "$all/$run"
}
pair_verdict() {
    pair "$@"
    verdict $? "$* has the bits of 1 rank"
}

if [ "$TEST_TIER" = check ]; then
    uncovered >"$log"
    [ ! -s "$log" ]
    verdict $? "every two values meet in a row"
    part invariant mixtral "1 local" "4 node"
    part gpu_form bf16
    part gpu_form nvfp4-gpt-oss
    part invariant shared-nvfp4 "1 local" "3 window"
    part invariant attention-gqa "1 local" "3 window"
    while read -r row; do
        # shellcheck disable=SC2086
        part pair_verdict $row </dev/null
    done < <(pairs | sed 1d)
    finish
fi

part invariant mixtral "1 local" "2 window" "4 window" "4 node" "2 staged" "3 staged"
part blended "1 local" "3 window"
part invariant micro-batches "1 local" "2 window" "3 window"
MOERT_SYNC=device part invariant devices-wait "1 local" "2 window" "3 window"
MOERT_PUSH=on part invariant qwen3 "1 local" "3 window"
MOERT_SYNC=device MOERT_PUSH=on part invariant bf16-pushed "1 local" "2 window" "3 window"
part invariant uneven "1 local" "4 window" "3 node"
part invariant few "1 local" "4 staged"
for name in epochs balanced moving-gpt-oss cloned-gpt-oss; do part invariant $name "1 local" "3 window"; done
for name in gpt-oss states-qwen3-moe states-gpt-oss; do part invariant $name "1 local" "3 window" "4 staged"; done
for name in sequence-loss bf16 mxfp8 fp8 nvfp4-plain nvfp4 shared-nvfp4 gated-nvfp4 attention-mla attention-gqa; do part invariant $name "1 local" "2 window" "4 staged"; done
for name in dense-f32 dense-bf16; do part invariant $name "1 local" "2 window" "3 staged"; done
for name in moving-f32 moving-nvfp4 cloned-f32 mxfp8-dispatch bf16-combine; do part invariant $name "1 local" "2 window" "3 node" "4 staged"; done

# tensor cores do not add row by row, so clones and replicas change the last bits on GPUs with tensor cores
tensor_cores() { [ "${MOERT_DEVICE:-}" = gpu ] && [ "${MOERT_BACKEND:-}" != portable ]; }
! tensor_cores || alike=losses_near kept=losses
for name in cloned-bf16 cloned-fp8 cloned-nvfp4; do part invariant $name "1 local" "2 window" "3 node" "4 staged"; done
unset alike kept

join # the parts below read the run directories of the parts above

check "balanced routing: the busiest expert has at most 1.2 times the mean" \
    awk '{ sub(/.*"expert_load": /, ""); if ($1 + 0 > 1.2) bad++ } END { exit !(NR == 4 && !bad) }' "$all/balanced-3-window/metrics.jsonl"
for run in "$all"/moving-*-[2-4]-* "$all"/states-*-[2-4]-*; do
    check "${run##*/}: experts have moved" grep -q '"moved_experts": [1-9]' "$run/metrics.jsonl"
done
for run in "$all"/cloned-*-[34]-*; do
    check "${run##*/}: experts had clones" grep -q '"clones": [1-9]' "$run/metrics.jsonl"
done

# again WHAT NAME RANKS ENGINE: trains with recomputation of layers or experts; the run must have the bits of NAME-1-local
again() {
    variant "$2" "again-$1-$2" "$3" "$4" --recompute "$1" && same_run "$all/$2-1-local" "$all/again-$1-$2"
    verdict $? "$2: $3 $4 with --recompute $1 has the bits of 1 local"
}
part again layer mixtral 1 local
part again layer sequence-loss 2 staged
several=3
for what in layer experts; do
    part again $what micro-batches $several window
    part again $what gpt-oss 2 window
    part again $what moving-nvfp4 $several node
    part again $what nvfp4 2 window
    part again $what shared-nvfp4 2 window
    part again $what attention-gqa 2 window
    part again $what dense-bf16 $several staged
    several=4
done

# exact NAME RANKS ENGINE EP: trains with exact replicas of the experts; the run must have the bits of NAME-1-local
exact() {
    variant "$1" "exact-$1-$3" "$2" "$3" --replicas exact --ep "$4" && "${alike:-same_run}" "$all/$1-1-local" "$all/exact-$1-$3"
    verdict $? "$1: $2 $3 --ep $4 with exact replicas has the ${kept:-bits} of 1 local"
}
part exact mixtral 4 window 2
part exact micro-batches 4 staged 1
part exact gpt-oss 4 node 2
! tensor_cores || alike=losses_near kept=losses
part exact fp8 3 window 1
part exact nvfp4 4 staged 2
unset alike kept

# pieces NAME RANKS ENGINE: trains with a driver that allocates at most 64 KiB at once, so that most buffers consist of several
# allocations; the run must have the bits of NAME-1-local
pieces() {
    ALLOCATION_BYTES=65536 LD_PRELOAD=$(realpath "${TEST_BUILD:-build}/tests/small_allocations.so") variant "$1" "pieces-$1" "$2" "$3" &&
        same_run "$all/$1-1-local" "$all/pieces-$1"
    verdict $? "$1: $2 $3 with small allocations has the bits of 1 local"
}

if [ "${MOERT_DEVICE:-}" != gpu ]; then # only CPUs have buffers of several allocations, and run both forms
    for name in mxfp8 fp8 nvfp4 shared-nvfp4 attention-gqa mxfp8-dispatch states-gpt-oss; do part gpu_form $name; done
    part pieces states-gpt-oss 3 staged
    part pieces cloned-f32 2 window
    part pieces nvfp4 2 window
    part pieces dense-bf16 1 local
fi

# a model with tied embeddings that is loaded from files
cp -r "$all/qwen3-1-local/model" "$all/tied" &&
    sed -i 's/\("tie_word_embeddings": *\)false/\1true/' "$all/tied/config.json" && rm "$all/tied/manifest.json" &&
    grep -q '"tie_word_embeddings": *true' "$all/tied/config.json"
verdict $? "tied: a model with tied embeddings is made"
part invariant tied "1 local" "2 window" "4 staged"
part invariant tied-dense "1 local" "4 window"

replicas() {
    variant mixtral replicas-a 4 window --ep 2 && variant mixtral replicas-b 4 window --ep 2 && same_run "$all/replicas-a" "$all/replicas-b"
    verdict $? "replicas: two runs of EP 2 x EDP 2 agree bit for bit"
    variant mixtral replicas-c 4 window --ep 2 --rebalance 5 && same_run "$all/replicas-a" "$all/replicas-c"
    verdict $? "replicas: so does a run whose experts move"
    losses_near "$all/replicas-a" "$all/mixtral-4-window"
    verdict $? "replicas: losses of EP 2 x EDP 2 and of EP 4: $(tail -n 1 "$log")"
}
part replicas

for name in mixtral epochs states-gpt-oss cloned-f32; do part resumed $name; done

# a checkpoint of EP 2 x EDP 2, to which each rank has written its shards, is resumed with the same and with other EP x EDP
rearranged() {
    local run=(--batch 8 --steps 12 --save-every 6 --eval-every 12) way
    train slices 4 window "${run[@]}" --ep 2 && mv "$all/slices/checkpoints"/*12 "$all/slices-whole"
    verdict $? "rearranged: EP 2 x EDP 2 runs"
    for way in "4 window --ep 2" "2 window --ep 2" "1 local" "3 staged" "4 window --ep 2 --replicas exact"; do
        cp -r "$all/slices" "$all/from-slices-${way// /-}"
        # shellcheck disable=SC2086
        check "rearranged: $way resumes it" train "from-slices-${way// /-}" $way "${run[@]}" --resume auto
    done
    check "rearranged: EP 2 x EDP 2 has the bits of the uninterrupted run" diff -r "$all/slices-whole" "$all/from-slices-4-window---ep-2/checkpoints"/*12
    for way in "1 local" "3 staged" "4 window --ep 2 --replicas exact"; do
        check "rearranged: $way has the bits of EP 2" diff -r "$all/from-slices-2-window---ep-2/checkpoints" "$all/from-slices-${way// /-}/checkpoints"
    done
}
part rearranged
join
check "resumed-cloned-f32: experts had clones after the resume" grep -q '"step": [4-7],.*"clones": [1-9]' "$all/resumed-cloned-f32/metrics.jsonl"
finish

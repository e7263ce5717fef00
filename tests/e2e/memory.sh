#!/usr/bin/env bash
# run: check all
# moert-train and moert-info estimate the memory of a run before it begins. Both programs refuse a run that does not fit, and
# name options that make it fit. --recompute auto chooses such options, and the run uses the estimated memory of the device.
. "$(dirname "$0")/../support/e2e.sh"

small=(--data LICENSE --hidden 64 --intermediate 96 --heads 4 --layers 3 --experts 6 --length 96 --batch 8 --steps 3 --save-every 3 --log-every 0)
train() { # NAME RANKS ENGINE OPTION...
    MOERT_EXCHANGE=$(engine "$3") ranks "$2" "$bin/moert-train" "${small[@]}" --out "$tmp/$1" "${@:4}"
}
expected() { sed -n 's/^rank [0-9]* will take \([0-9.]*\) MiB of .*/\1/p' "$log"; } # prints the expected MiB of the run in $log

plain=$tmp/plain # shared by all parts
train plain 2 window
verdict $? "a run of two ranks: $(grep 'will take' "$log")"
needs=$(expected)

# ---- a run that does not fit ----

less() { awk -v mib="$1" -v part="$2" 'BEGIN { printf "%.0fK", mib * part * 1024 }'; } # MIB PART
fits() {
    refused 1 "would take .* of memory, above the .* it fits with --recompute" "a run that does not fit is refused, with options" \
        train big 2 window --memory "$(less "$needs" 0.75)"
    local options
    read -ra options < <(sed -n 's/.*it fits with //p' "$log")
    [ ! -e "$tmp/big" ]
    verdict $? "it leaves no run directory"
    [[ " ${options[*]} " != *' 0 '* ]]
    verdict $? "what is not needed is no option"
    train fits 2 window --memory "$(less "$needs" 0.75)" "${options[@]}"
    verdict $? "it runs with these options: ${options[*]}"
}
hot() {
    train hot 2 window --imbalance 1.5
    [ $? -eq 0 ] && has_lines "$log" "with 1.5 times the rows of balanced routing" && awk -v more="$(expected)" -v plain="$needs" 'BEGIN { exit !(more > plain) }'
    verdict $? "--imbalance 1.5 estimates more: $(grep 'will take' "$log")"
}
part fits
part refused 1 "it fits with --recompute .* --moments bf16 --gradients bf16" "bf16 states are named where nothing else helps" \
    train big 2 window --memory "$(less "$needs" 0.63)"
part refused 1 "more ranks, shorter sequences or a smaller model" "one that never fits says so" train big 2 window --memory 1M
part hot

# ---- an allocation that fails in the first step or before it ----

shim=$(realpath "${TEST_BUILD:-build}/tests/inject.so")
first_step() { # [SITE]: a run on one rank in whose first step this call fails
    rm -rf "$tmp/new" "$tmp/sites.0"
    logged env INJECT_LOG="$tmp/sites" ${1:+INJECT_SITE=$1} LD_PRELOAD="$shim" OMPI_MCA_ess_singleton_isolated=1 \
        "$bin/moert-train" "${small[@]}" --steps 1 --tensorboard --out "$tmp/new/run"
}
starved() {
    local sites site left=()
    first_step
    mapfile -t sites < <(awk '$2 == "clCreateBuffer" && ++n % 5 == 0 { print $1 }' "$tmp/sites.0")
    for site in "${sites[@]}"; do
        first_step "$site"
        [ $? -eq 1 ] && has_lines "$log" "moert-train: .*has no room for a buffer" && [ ! -e "$tmp/new" ] || left+=("$site")
    done
    [ ${#sites[@]} -gt 4 ] && [ ${#left[@]} -eq 0 ]
    verdict $? "a buffer that cannot be made ends the run with a message and without a run directory, at ${#sites[@]} sites ${left[*]}"
}
part starved

# ---- the choice of --recompute auto ----

# chosen RANKS ENGINE PART WORD: checks that --recompute auto chooses WORD if the device has the fraction PART of the memory, and
# that the run's bits do not change
chosen() {
    train "auto-$3" "$1" "$2" --recompute auto --memory "$(less "$needs" "$3")" && has_lines "$log" "and --recompute $4" &&
        same_run "$plain" "$tmp/auto-$3"
    verdict $? "$1 $2: with $3 of the memory, auto takes $4 and changes no bit"
}
part chosen 2 window 1.01 none
part chosen 2 window 0.93 experts
part chosen 2 staged 0.85 layer

# ---- the memory that a run used ----

# measured RANKS ENGINE OPTION...: checks that the run's memory is within 2 % of the estimate for the rows of the run
measured() {
    train one "$1" "$2" --length 256 "${@:3}" && awk '/^memory / { off = $2 / $11 - 1; n++ } END { exit !(n == 1 && off < 0.02 && off > -0.02) }' "$log"
    verdict $? "$1 $2: $(sed -n 's/^memory *\(.*\)/\1/p' "$log") (${*:3})"
}
only all part measured 1 local --micro-batches 4 --eval-every 1 --eval-sequences 24 --recompute experts
only all part measured 1 local --form deepseek-v3 --head-size 16 --recompute layer --loss-chunk 64
only all part measured 1 local --form gpt-oss --precision bf16 --dense bf16 --dispatch bf16 --combine bf16
only all part measured 1 local --form qwen2-moe --precision nvfp4
only all part measured 2 window --micro-batches 2 --moments bf16 --gradients bf16
only all part measured 3 window --steps 20
only all part measured 3 staged --steps 20
only all part measured 4 window --form gpt-oss --precision bf16 --dispatch bf16 --recompute layer

# ---- before there is a run ----

alone "$bin/moert-info" --model "$plain/model" --batch 8 --length 96 --ranks 2 && has_lines "$log" "rank [01] has the least room: it takes $needs MiB and may take"
verdict $? "moert-info --ranks 2 on one rank tells the same"
alone "$bin/moert-info" --model "$plain/model" --batch 8 --length 96 --ranks 2 --memory "$(less "$needs" 0.93)" --recompute auto &&
    has_lines "$log" "computes the experts' first projections again"
verdict $? "so does moert-info --recompute auto"
alone "$bin/moert-info" --model "$plain/model" --batch 8 --length 96 --memory 1M && has_lines "$log" "so the run does not fit"
verdict $? "moert-info says what does not fit"
finish

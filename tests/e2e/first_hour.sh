#!/usr/bin/env bash
# run: all
# A new user's first hour: the commands that a new user types, one after the other, and what the user expects to see. The user types the
# options of a run only once; afterwards they come from the run's record.
. "$(dirname "$0")/../support/e2e.sh"
root=$PWD build=$(realpath "${TEST_BUILD:-build}")
mkdir "$tmp/here"
cd "$tmp/here" || exit 1
for each in Makefile LICENSE README.md launch; do ln -s "$root/$each" .; done
ln -s "$build" build
# what launch/environment has set for the other tests, and the hosts of a scheduler: launch/train finds them itself
unset OMPI_ALLOW_RUN_AS_ROOT OMPI_ALLOW_RUN_AS_ROOT_CONFIRM HWLOC_COMPONENTS OMPI_MCA_mpi_yield_when_idle \
    OMPI_MCA_mpi_abort_delay OMPI_MCA_btl_tcp_disable_family SLURM_JOB_NODELIST PBS_NODEFILE LSB_DJOB_HOSTFILE LSB_HOSTS

# prints the held-out losses of a run with 4 digits, as the console does, one a line
held_out() { grep -oE '"heldout_loss": [0-9.]+' "$1/metrics.jsonl" | cut -d ' ' -f 2 | xargs printf '%.4f\n'; }
loss() { sed -nE "s/^\{\"step\": $2, \"loss\": ([0-9.]+).*/\1/p" "$1/metrics.jsonl"; } # RUN STEP

# ---- the first run ----

# a directory of text, and what moert sees in it
mkdir corpus && cp LICENSE README.md corpus
logged build/bin/moert-info --data corpus && has_lines "$log" '^type +bytes$' '^files +2$' "^tokens +$(($(cat corpus/* | wc -c) + 1))\$" # a byte between the files
verdict $? "moert-info describes a directory of text"

# a small model on two ranks; at the end a summary and the paths of the results
logged launch/train --np 2 -- --data corpus --out runs/first --hidden 64 --intermediate 128 --batch 8 --length 64 --steps 60 --lr 3e-3 --warmup 10 \
    --eval-every 20 --save-every 30 --log-every 10 &&
    has_lines "$log" '^moert-train: 2 ranks, ' '^step +59  loss .*  held-out ' '^trained 60 steps, 30720 tokens, in [0-9.]+ s \([0-9]+ tokens/s ' \
        "^lowest held-out loss $(held_out runs/first | sort -n | head -n 1), after step [0-9]+ of 60\$" '^memory ' \
        '^metrics runs/first/metrics.jsonl$' '^model   runs/first/model$'
verdict $? "a first training ends with a summary"
awk -v first="$(loss runs/first 0)" -v last="$(loss runs/first 59)" 'BEGIN { exit !(first > 5 && last < 0.7 * first) }'
verdict $? "the loss has fallen"
[ "$(ls runs/first | paste -sd ' ')" = "checkpoints metrics.jsonl model run.json" ]
verdict $? "the run directory has the metrics, the model, the checkpoints and the record"

# the same directory for another run
refused 2 '^moert-train: .*--out runs/first has the model of an older run, .*--overwrite to replace it, or --resume auto to go on' \
    "a second run does not overwrite the first one" logged launch/train --np 2 -- --data corpus --out runs/first --steps 5
logged build/bin/moert-info --check runs/first && has_lines "$log" '^good +runs/first/model' && ! grep -q '^damaged' "$log"
verdict $? "the files of the first run are as they were written"

# ---- stop, and go on ----

# a longer run with the options of the first one
stop() {
    launch/train --np 2 -- --config runs/first/run.json --out runs/long --steps 400 --log-every 0 >said 2>&1 &
    local i
    for ((i = 0; i < 1200; i++)); do [ -s runs/long/metrics.jsonl ] && break || sleep 0.05; done
    launch/stop runs/long && wait $! && has_lines said '^options of runs/first/run.json: --data=corpus ' '^stopped by a signal; continue with --resume auto$'
}
check "launch/stop stops a run in order" stop
done=$(wc -l <runs/long/metrics.jsonl)
[ "$done" -lt 400 ] && [ -e "runs/long/checkpoints/step-$(printf %08d "$done")/state.json" ]
verdict $? "a checkpoint has the last step of the stopped run"
refused 1 '^stop: no training writes to runs/long$' "a run that has ended cannot be stopped" logged launch/stop runs/long

# on more ranks, only with --out
logged launch/train --np 3 -- --out runs/long --resume auto &&
    has_lines "$log" '^options of runs/long/run.json: --data=corpus ' "^resumed from runs/long/checkpoints/step-0*$done at step $done\$" \
        '^moert-train: 3 ranks, ' "^trained $((400 - done)) steps, "
verdict $? "--resume auto goes on with the options of the record, on more ranks"

# the same run without the interruption, on one rank
logged launch/train --config runs/long/run.json --out runs/again && has_lines "$log" '^moert-train: 1 rank, ' &&
    rm -rf "runs/long/checkpoints/step-$(printf %08d "$done")" && same_run runs/long runs/again
verdict $? "a run from the record of the resumed run has its bytes"

# longer, and then with another learning rate
logged launch/train --np 2 -- --out runs/first --resume must --steps 80 &&
    has_lines "$log" 'warning: .*step-00000060 was trained with --steps 60; this run goes on with --steps 80$' \
        'warning: .*: the learning rate goes from 0.0003 to [0-9.]+, since --steps stretches its schedule$' '^trained 20 steps, '
verdict $? "more --steps at a resume: a warning has both rates"
logged launch/train --np 2 -- --out runs/first --resume must --steps 90 --lr 1e-3 &&
    has_lines "$log" 'warning: .*step-00000080 was trained with --lr 0.003 .*; this run goes on with --lr 0.001 '
verdict $? "another --lr at a resume: a warning"
logged launch/train -- --out runs/first --resume auto --show-config && tr -d ' \n' <"$log" >shown &&
    has_lines shown '"steps":\{"value":90,"source":"file"\}' '"data":\{"value":\["corpus"\],"source":"file"\}' '"out":\{"value":"runs/first","source":"given"\}'
verdict $? "--show-config shows the options of the next resume, and their sources"

# ---- evaluate ----

cp runs/first/run.json before.json
logged launch/train -- --out runs/first --resume must --steps 0 --eval-every 1 &&
    has_lines "$log" "^held-out loss $(held_out runs/first | tail -n 1)\$" && ! grep -q warning "$log" && diff before.json runs/first/run.json >>"$log"
verdict $? "--steps 0 evaluates a run, and leaves its record as it is"
logged launch/train --np 2 -- --model runs/first/model --data corpus --steps 0 --eval-every 1 &&
    has_lines "$log" "^held-out loss $(held_out runs/first | tail -n 1)\$"
verdict $? "--steps 0 evaluates a model, in sequences that the model takes"

# a rate that is too high, so that the best checkpoint is not the last one
logged launch/train --np 2 -- --config runs/first/run.json --out runs/best --lr 0.1 --lr-schedule constant --eval-every 10 --keep-best --keep-last 1
best=$(sed -nE 's/^lowest held-out loss .*, after step ([0-9]+) of 90$/\1/p' "$log")
[ "$(ls runs/best/checkpoints | paste -sd ' ')" = "$(printf 'step-%08d\n' "$best" 90 | uniq | paste -sd ' ')" ]
verdict $? "--keep-best keeps the checkpoint with the lowest held-out loss"
logged launch/train -- --model "runs/best/checkpoints/step-$(printf %08d "$best")" --data corpus --steps 0 --eval-every 1 &&
    has_lines "$log" "^held-out loss $(held_out runs/best | sort -n | head -n 1)\$"
verdict $? "this checkpoint has that loss"

# ---- what the model is for ----

launch/train --np 2 --program moert-generate -- --model runs/first/model --prompt 'The ' --count 40 >text 2>"$log" &&
    [ "$(head -c 4 text)" = 'The ' ] && [ "$(wc -c <text)" -eq 45 ]
verdict $? "moert-generate continues a text by 40 bytes"
if command -v "${PYTHON:-python3}" >/dev/null; then
    launch/generate --model runs/first/model --prompt 'The ' --count 40 >same 2>"$log" && diff text same >>"$log"
    verdict $? "launch/generate writes the same text"
else
    verdict 0 "launch/generate # SKIP no python3"
fi
logged build/bin/moert-info --model runs/first/model && has_lines "$log" '^memory per rank to train runs/first/model ' '^16 sequences of 64 tokens' '^rank 0 has the least room'
verdict $? "moert-info says how much memory the model needs"
logged build/bin/moert-report runs/first && has_lines "$log" '^  The loss went from .* in 90 steps; held out ' '^page    runs/first/report.html$' &&
    grep -q '</html>' runs/first/report.html
verdict $? "moert-report draws a page"
logged launch/train --np 2 -- --model runs/first/model --data corpus --out runs/further --resume auto --steps 1 --batch 8 &&
    has_lines "$log" '^no checkpoint in runs/further/checkpoints; starting at step 0$' '^trained 1 step, 512 tokens, ' '^model   runs/further/model$' &&
    awk -v first="$(loss runs/further 0)" -v last="$(loss runs/first 89)" 'BEGIN { exit !(first < 1.2 * last) }'
verdict $? "the exported model is trained further in another run"
logged launch/train -- --model runs/first/model --data corpus --steps 1 && has_lines "$log" '^without --out, nothing is saved$' && ! grep -q '^model ' "$log"
verdict $? "a training without --out says that it saves nothing"
logged launch/train -- --out runs/long --replay 380:2 && has_lines "$log" '^replay  runs/long/replay-00000380.jsonl$' &&
    mkdir replayed recorded && cp runs/long/replay-00000380.jsonl replayed/metrics.jsonl && sed -n 381,382p runs/long/metrics.jsonl >recorded/metrics.jsonl &&
    diff <(digits recorded) <(digits replayed) >>"$log"
verdict $? "--replay computes steps again, with the recorded digits"
logged launch/train --version && has_lines "$log" '^moert-train [0-9.]+, commit [0-9a-f]{7}.*, .*MPI.*, [^ ]'
verdict $? "--version"

# ---- mistakes ----

refused 2 '^moert-train: unknown option --stesp; did you mean --steps\?$' "a mistyped option" \
    logged launch/train --np 2 -- --out runs/long --resume auto --stesp 500
refused 2 '^train: unknown option --npp before --; ' "a mistyped option of launch/train" logged launch/train --npp 2 -- --out runs/long --resume auto
refused 1 '^moert-train: .*corpsu: No such file' "a directory of data that is not there" logged launch/train --np 2 -- --data corpsu --out runs/new
refused 2 '^moert-train: --resume takes its options from runs/frist/run.json, which is not there; ' "a mistyped --out at a resume" \
    logged launch/train --np 2 -- --out runs/frist --resume auto
ends 2 '^moert-train: rank 0 .*: --resume must: runs/new/checkpoints has no checkpoint$' "--resume must without a checkpoint" \
    logged launch/train --np 2 -- --data corpus --out runs/new --resume must
cp -r "$root/tests/golden/family/gpt-oss" MODEL && echo '{}' >MODEL/tokenizer.json # a model whose tokens are not bytes
refused 2 "^moert-train: .*the model's vocabulary is 128, not the 256 bytes; make tokens of it by launch/tokenize --tokenizer MODEL " \
    "text for a model with a tokenizer" logged launch/train --np 2 -- --model MODEL --data corpus --out runs/new
refused 1 '^moert-report: runs/frist/metrics.jsonl: No such file' "a report of a run that is not there" logged build/bin/moert-report runs/frist
[ "$(ls runs | paste -sd ' ')" = "again best first further long" ]
verdict $? "no mistake leaves a run directory"
finish

#!/usr/bin/env bash
# run: check all night waits
# A training run whose rank is killed or stopped ends soon and names the rank, also while experts move, or exchange weights and sums
# with their clones. A run that gets SIGTERM saves a checkpoint of its last whole step and ends without an error. Resumed from its
# last checkpoint on any number of ranks, a run ends with the bytes of a run without faults. No temporary files and no shared
# memory are left. FAULTS_SEED=N chooses the random ranks and moments (default 1). FAULTS=N makes only N random faults during the
# steps. FAULTS_LIVES=N makes only N faults at any moment of a process, N / 5 more faults under launch/train, and N faults while
# experts move. FAULTS_STEPS=N sets the number of steps of each run, a multiple of 20. With MOERT_DEVICE=gpu each rank uses a GPU
# of its own.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-train
export -n TEST_BUILD # keep them out of the programs' environment
chosen=${FAULTS:-}${FAULTS_LIVES:-} # if not empty, only the faults of these variables run
declare -A usual=([check]=2 [all]=4 [night]=20)
default=$([ -n "$chosen" ] && echo 0 || echo "${usual[$TEST_TIER]}")
faults=${FAULTS:-$default} lives=${FAULTS_LIVES:-$default}
echo "# FAULTS_SEED=${FAULTS_SEED:=1}"
export MOERT_TIMEOUT_S=8 # a loaded machine may stop a save for seconds
. tests/support/job.sh
: "${FAULTS_STEPS:=$([ "$TEST_TIER" = check ] && echo 60 || echo 240)}"

# runs_of NAME STEPS OPTION...: later trainings run STEPS steps with these options, in the directory NAME
runs_of() {
    work=$tmp/$1 steps=$2 last=step-$(printf %08d "$2")
    arguments=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 64 --keep-last 2 --log-every 0 --steps "$2" "${@:3}")
}
train() { # NAME RANKS [OPTION...]: starts a training in the background
    start "$1" "$2" "$program" "${arguments[@]}" --out "$work/$1/run" "${@:3}"
}
under_launch() { # NAME RANKS
    launch "$1" launch/train --np "$2" --program "$program" -- "${arguments[@]}" --out "$work/$1/run"
}
whole() { # RANKS: trains without faults
    train whole "$1"
    await 300
    verdict $status "$steps steps without faults"
}
# seeded N COMMAND...: runs COMMAND as a part (see tests/support/e2e.sh) with a random seed derived from N
seeded() { part with_seed $((FAULTS_SEED + $1)) "${@:2}"; }
with_seed() {
    RANDOM=$1
    "${@:2}"
}

random_moment() { # waits for a random moment in the first half of the run, in any phase of a step
    steps_done $((1 + RANDOM % (steps / 2)))
    sleep 0.0$((RANDOM % 100))
}

resumes() { # NAME RANKS: resumes a run to its end; prints the verdict on the run's files
    train "$1" "$2" --resume auto
    await 300
    [ "$status" -eq 0 ] && diff -r "$work/whole/run/checkpoints/$last" "$dir/run/checkpoints/$last" &&
        diff -r "$work/whole/run/model" "$dir/run/model" && [ "$(wc -l <"$dir/run/metrics.jsonl")" -eq $steps ] &&
        [ -z "$(find "$dir/run" -name '*.tmp' -o -name '*.old' -o -name '*.partial')" ]
    verdict $? "$1: resumed on $2 ranks, the same bytes as without the fault"
}

place="at step [0-9]+ in phase '[a-z_ -]+'; rank [0-9] has waited for it for [0-9]+ s in '[a-z_ -]+'; ending the job"
gone="is gone \(its process [0-9]+ has ended\), $place\$"
stopped="is stopped .*, $place \(MOERT_TIMEOUT_S=8\)\$"

# True if the end of the job names the victim and its fault. After a SIGKILL, mpirun of MPICH or Open MPI 5 may end the job before
# moert does
names_fault() { # SIGNAL RANK PATTERN
    says_once "^moert: rank $2 on .* $3" && return
    ! grep -q '^moert: ' "$dir/stderr" && case $1-$MOERT_MPI in
    KILL-mpich) grep -qE 'EXIT CODE: (9|6)$' "$dir/stdout" ;; # 6: UCX aborted another rank, which noticed the loss
    KILL-openmpi5) grep -q "process rank $2 with PID .* exited on" "$dir/stderr" ;;
    *) false ;;
    esac
}
in_phase() { grep -o "step [0-9]* in phase '[^']*'" "$dir/stderr" | head -n 1; }

# left_nothing PID...: true if the job has left no file and these processes end
left_nothing() {
    local left
    sleep 0.2
    left=$(temporary)
    [ -z "$left" ] || echo "left: $left" >>"$dir/stderr"
    [ -z "$left" ] && { [ $# -eq 0 ] || ended "$@"; }
}

# ---- during the steps ----

# fault N: kills or stops a random rank of a run on 2 or 4 ranks at a random moment, then resumes the run on 1 to 4 ranks
fault() {
    local ranks=$((($1 + 1) / 2 % 2 == 0 ? 2 : 4)) signal=KILL says=$gone pids
    [ $(($1 % 2)) -eq 0 ] || signal=STOP says=$stopped
    local victim=$((RANDOM % ranks)) title before
    title="fault $1: $signal to rank $victim of $ranks"
    train "fault-$1" $ranks
    steps_done 1
    before=$(temporary)
    pids=($(for ((rank = 0; rank < ranks; rank++)); do rank_pid $rank; done))
    random_moment
    kill -$signal "${pids[victim]}"
    await
    [ "$status" -ne 0 ] && [ "$seconds" -lt 25 ] && names_fault $signal "$victim" "$says"
    verdict $? "$title: $(in_phase); the job ends after $seconds s and names it"
    [ -n "$before" ] && left_nothing "${pids[@]}"
    verdict $? "$title: no process, session, socket or shared memory is left"
    resumes "fault-$1" $((1 + RANDOM % 4))
}

runs_of steps "$FAULTS_STEPS" --batch 8 --save-every 20
whole 1
for ((n = 0; n < faults; n++)); do seeded $n fault $n; done

# ordered NAME START TARGETS TITLE: sends SIGTERM to the TARGETS (ranks or the launcher) of a job on 2 ranks
ordered() {
    local pids
    $2 "$1" 2
    steps_done 1
    pids=$([ "$3" = launcher ] && echo "$launcher" || for rank in $3; do rank_pid "$rank"; done)
    random_moment
    kill -TERM $pids
    await
    if [ "$1" = mpirun ]; then [ "$seconds" -lt 25 ]; else in_order; fi
    verdict $? "$1: SIGTERM to $4"
    resumes "$1" $((1 + RANDOM % 3))
}
if [ -z "$chosen" ]; then
    saves="saves the last whole step and ends without an error"
    seeded 100 ordered both train "0 1" "both ranks $saves"
    [ "$TEST_TIER" = check ] || seeded 101 ordered one train 1 "one rank $saves"
    # launch/train passes the first signal on to the ranks in a way that does not make mpirun end the job at once
    seeded 102 ordered launch under_launch launcher "launch/train $saves"
    [ "$TEST_TIER" = check ] || seeded 103 ordered mpirun train launcher "mpirun ends the job soon"
fi

[ "$TEST_TIER" != check ] || finish

# ---- faults at any moment between the start and the end of a process; jobs spend half of the time on saves ----

# life NUMBER COMMAND...: runs COMMAND... RANKS, which starts a job of 2 to 4 ranks, and kills or stops a rank, unless its process
# has already ended
life() {
    local ranks=$((2 + $1 % 3)) signals=(KILL STOP) pid moment
    local signal=${signals[$1 / 3 % 2]} victim=$((RANDOM % ranks))
    "${@:2}" "life-$1" $ranks
    for ((tries = 0; tries < 200; tries++)); do
        pid=$(rank_pid $victim)
        [ -z "$pid" ] || break
        sleep 0.02
    done
    moment=$((RANDOM % life_ms))
    sleep $((moment / 1000)).$(printf %03d $((moment % 1000)))
    kill -$signal "$pid" 2>/dev/null
    await
    [ -n "$pid" ] && [ "$seconds" -lt 25 ] && [ "$(grep -c '^moert' "$dir/stderr")" -le 1 ] && left_nothing "$pid"
    verdict $? "life $1: $signal to rank $victim of $ranks after $moment ms: status $status after $seconds s, nothing is left"
    resumes "life-$1" $((1 + RANDOM % 4))
}

join # waits, because parts that still run would slow down the next run
runs_of short 20 --batch 8 --save-every 1
from=$(date +%s%N)
whole 3
life_ms=$((($(date +%s%N) - from) / 1000000))
for ((n = 0; n < lives; n++)); do seeded $((200 + n)) life $n train; done
for ((n = lives; n < lives + (lives + 4) / 5; n++)); do seeded $((200 + n)) life $n under_launch; done

# ---- faults inside a call that moves experts, or that exchanges weights and sums between an expert and its clones ----

runs_of handed 20 --batch 8 --experts 4 --save-every 2 --rebalance 2 --spare-slots 2 --clones
shim=$(realpath "${bin%/bin}/tests/inject.so")
whole 1
LD_PRELOAD=$shim INJECT_LOG=$work/sites train sites 3
await
hand_calls() { # prints `RANK SITE FUNCTION FILE:LINE` of each call of MPI or OpenCL that moves experts or serves clones
    local log site function offsets place
    for log in "$work"/sites.?; do
        while read -r site function offsets; do
            [[ $function = @(MPI_*|clEnqueue*) ]] || continue
            place=$(addr2line -e "$program" $offsets | grep -Eo '(layer/clones|train/move)\.c:[0-9]+' | head -n 1)
            [ -z "$place" ] || echo "${log##*.} $site $function $place"
        done <"$log"
    done
}
hand_calls >"$work/calls"
grep -q 'layer/clones' "$work/calls" && grep -q 'train/move' "$work/calls"
verdict $? "$(wc -l <"$work/calls") call sites move experts or hand on what clones need"
handed() { # FILE N: kills a rank in a random call of the file, then resumes the run
    local victim site function place call title
    read -r victim site function place < <(grep "$1" "$work/calls" | shuf -n 1 --random-source=<(yes $RANDOM))
    title="$function in $place kills rank $victim"
    for call in $((1 + RANDOM % 6)) 1; do
        rm -rf "${work:?}/handed-$2"
        LD_PRELOAD=$shim INJECT_LOG=$dir/fired-$2 INJECT_SITE=$site INJECT_RANK=$victim INJECT_KILL=$call train "handed-$2" 3
        await
        [ "$status" -eq 0 ] || break # after a run without an error, tries call 1: the site has fewer calls
    done
    [ "$status" -ne 0 ] && [ "$seconds" -lt 25 ] && names_fault KILL "$victim" "$gone" && left_nothing
    verdict $? "$title at call $call: $(in_phase); the job ends after $seconds s and names it"
    resumes "handed-$2" $((1 + RANDOM % 4))
}
for ((n = 0; n < lives; n++)); do seeded $((300 + n)) handed $([ $((n % 2)) -eq 0 ] && echo layer/clones || echo train/move) $n; done

# ---- SIGTERM in the second of two long steps: the run drops the second step, and repeats it after the resume ----

dropped() {
    whole 1
    train dropped 2
    steps_done 1
    kill -TERM "$(rank_pid 1)"
    await
    in_order && [ "$(wc -l <"$dir/run/metrics.jsonl")" -eq 1 ]
    verdict $? "dropped: SIGTERM between the micro-batches of a step drops the step"
    resumes dropped 3
}
runs_of long 2 --batch 512 --micro-batches 256 --save-every 2
[ -n "$chosen" ] || part dropped
finish

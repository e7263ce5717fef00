#!/usr/bin/env bash
# A training run whose rank is killed or frozen ends soon and names the rank; one that gets SIGTERM saves and ends in order.
# Either way it goes on from its last checkpoint, on any number of ranks, to the very bytes of a run that nothing happened to.
set -u
cd "$(dirname "$0")/../.." || exit 1
. launch/environment
program=${TEST_BUILD:-build}/bin/moert-train
export -n TEST_BUILD TEST_ALL # no variables of the programs
export MOERT_TIMEOUT_S=4
work=$(mktemp -d)
launcher=
leave() {
    [ -z "$launcher" ] || kill -KILL "$launcher" 2>/dev/null
    rm -rf "$work"
}
trap leave EXIT
steps=240
arguments=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 64 --batch 8 --steps $steps --save-every 20
    --keep-last 2 --log-every 0)
number=0 failed=0

verdict() { # 0 or 1, TITLE
    number=$((number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $number - $2"
    else
        echo "not ok $number - $2"
        tail -n 20 "$dir/stderr" | sed 's/^/# /'
        failed=1
    fi
}

start() { # NAME RANKS [OPTION...]: in the background, with output in $dir
    dir=$work/$1
    mkdir -p "$dir"
    FAULTS_RUN=$dir "${MOERT_MPIRUN[@]}" -n "$2" "$program" "${arguments[@]}" --out "$dir/run" "${@:3}" \
        >"$dir/stdout" 2>"$dir/stderr" &
    launcher=$!
}

rank_pid() { # RANK: its process in the run of $dir
    local environ
    for environ in /proc/[0-9]*/environ; do
        tr '\0' '\n' <"$environ" | grep -qx "FAULTS_RUN=$dir" &&
            tr '\0' '\n' <"$environ" | grep -qx "OMPI_COMM_WORLD_RANK=$1" && echo "$environ" | cut -d / -f 3
    done 2>/dev/null
}

random_moment() { # waits until the run has done a random number of steps
    local target=$((5 + RANDOM % (steps / 2))) tries=0
    while [ "$(wc -l 2>/dev/null <"$dir/run/metrics.jsonl" || echo 0)" -lt $target ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

finish() { # waits for the run, at most a minute; sets status, seconds
    local from=$SECONDS
    while kill -0 "$launcher" 2>/dev/null && [ $((SECONDS - from)) -lt 60 ]; do sleep 0.1; done
    kill -KILL "$launcher" 2>/dev/null
    wait "$launcher"
    status=$?
    launcher=
    seconds=$((SECONDS - from))
    echo "status $status after $seconds s" >>"$dir/stderr"
}

says_once() { # PATTERN: the only message
    [ "$(grep -c '^moert' "$dir/stderr")" -eq 1 ] && grep -Eq "$1" "$dir/stderr"
}

resumes() { # NAME RANKS: goes on to the end
    start "$1" "$2" --resume auto
    finish
    [ "$status" -eq 0 ] && diff -r "$work/whole/run/checkpoints/step-00000$steps" "$dir/run/checkpoints/step-00000$steps" &&
        diff -r "$work/whole/run/model" "$dir/run/model" && [ "$(wc -l <"$dir/run/metrics.jsonl")" -eq $steps ] &&
        [ -z "$(find "$dir/run" -name '*.tmp' -o -name '*.old' -o -name '*.partial')" ]
    verdict $? "$1: resumed on $2 ranks, the same bytes as without the fault"
}

# fault NAME SIGNAL RANKS VICTIM RESUMED PATTERN
fault() {
    start "$1" "$3"
    random_moment
    local pids
    pids=$(for ((rank = 0; rank < $3; rank++)); do rank_pid $rank; done)
    kill -"$2" "$(rank_pid "$4")"
    finish
    [ "$status" -ne 0 ] && [ "$seconds" -lt 25 ] && says_once "$6"
    verdict $? "$1: rank $4 of $3 at a random moment; the job ends and names it"
    sleep 0.2
    ! ls -d $(sed 's|^|/proc/|' <<<"$pids") >/dev/null 2>&1
    verdict $? "$1: no process is left"
    resumes "$1" "$5"
}

start whole 1
finish
verdict $status "a run without faults"

place="at step [0-9]+ in phase '[a-z_ -]+'; rank [0-9] has waited for it for [0-9]+ s in '[a-z_ -]+'; ending the job"
fault killed KILL 2 1 3 "^moert: rank 1 on .* is gone \(its process [0-9]+ has ended\), $place\$"
fault killed-first KILL 3 0 1 "^moert: rank 0 on .* is gone .*, $place\$"
fault frozen STOP 2 0 1 "^moert: rank 0 on .* is stopped .*, $place \(MOERT_TIMEOUT_S=4\)\$"
fault frozen-last STOP 3 2 2 "^moert: rank 2 on .* is stopped .*, $place \(MOERT_TIMEOUT_S=4\)\$"

# ordered NAME RANKS VICTIM...: SIGTERM to these ranks
ordered() {
    start "$1" "$2"
    random_moment
    local pids
    pids=$(for rank in "${@:3}"; do rank_pid "$rank"; done)
    kill -TERM $pids
    finish
    [ "$status" -eq 0 ] && grep -q 'continue with --resume auto' "$dir/stdout" && ! grep -q '^moert' "$dir/stderr" &&
        [ -e "$dir/run/checkpoints/step-$(printf %08d "$(wc -l <"$dir/run/metrics.jsonl")")/state.json" ]
    verdict $? "$1: SIGTERM to ranks ${*:3} of $2 saves the last step and ends in order"
}
ordered terminated 2 0 1
resumes terminated 3
ordered terminated-one 2 1
resumes terminated-one 1

start launcher 2
random_moment
kill -TERM "$launcher"
finish
[ "$seconds" -lt 25 ]
verdict $? "launcher: SIGTERM to mpirun ends the job soon"
resumes launcher 2

echo "1..$number"
exit $failed

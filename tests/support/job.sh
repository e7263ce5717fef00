# Sourced after e2e.sh by scripts that start jobs in the background and disturb them. Sets $work (a directory of job directories),
# $shared (a directory of shared memory) and $dir (the directory of the last started job). Parts may run jobs of different names
# at the same time.
#
#   start NAME RANKS COMMAND...   starts a job in $work/NAME; its output is $dir/stdout and $dir/stderr
#   launch NAME COMMAND...        like `start`, for a COMMAND that calls mpirun itself
#   rank_pid RANK                 prints the process ID of a rank
#   steps_done N                  waits until $dir/run has done N steps, at most 30 s
#   await [SECONDS]               waits for the job, and kills it after SECONDS (default 60); sets $status and $seconds
#   in_order                      true if the job was stopped by a signal, without an error, and has saved its last step
#   temporary                     lists Open MPI's sessions, sockets and shared memory, and PoCL's files. With MPICH, the next process on
#                                 the host removes PoCL's files of killed ones, so it runs one
#   ended PID...                  true if all these processes end within 5 seconds
#   says_once PATTERN true if there is exactly one message and the message matches PATTERN
work=$tmp
shared=$(mktemp -d -p /dev/shm)
launcher=
leave() {
    [ -z "$launcher" ] || kill -KILL "$launcher" 2>/dev/null
    rm -rf "$tmp" "$shared"
}
trap leave EXIT

start() { launch "$1" "${MOERT_MPIRUN[@]}" -n "$2" "${@:3}"; }

launch() {
    dir=$work/$1 segments=$shared/$1
    log=$dir/stderr
    mkdir -p "$dir/tmp" "$segments"
    # the directory of shared memory of Open MPI 4, and of Open MPI 5
    OMPI_MCA_btl_vader_backing_directory=$segments OMPI_MCA_btl_sm_backing_directory=$segments \
        TMPDIR=$dir/tmp JOB=$dir "${@:2}" >"$dir/stdout" 2>"$dir/stderr" &
    launcher=$!
}

rank_pid() {
    grep -lzx "JOB=$dir" /proc/[0-9]*/environ 2>/dev/null | xargs -r grep -lzxE "(OMPI_COMM_WORLD|PMI)_RANK=$1" 2>/dev/null | cut -d / -f 3
}

steps_done() {
    local target=$1 tries=0
    while [ "$(wc -l 2>/dev/null <"$dir/run/metrics.jsonl" || echo 0)" -lt "$target" ] && [ $tries -lt 600 ]; do
        sleep 0.05
        tries=$((tries + 1))
    done
}

await() {
    local from=$SECONDS
    while kill -0 "$launcher" 2>/dev/null && [ $((SECONDS - from)) -lt "${1:-60}" ]; do sleep 0.1; done
    kill -KILL "$launcher" 2>/dev/null
    wait "$launcher"
    status=$?
    launcher=
    seconds=$((SECONDS - from))
    echo "status $status after $seconds s" >>"$dir/stderr"
}

in_order() {
    [ "$status" -eq 0 ] && grep -q 'continue with --resume auto' "$dir/stdout" && ! grep -q '^moert' "$dir/stderr" &&
        [ -e "$dir/run/checkpoints/step-$(printf %08d "$(wc -l <"$dir/run/metrics.jsonl")")/state.json" ]
}

temporary() {
    [ $MOERT_MPI != mpich ] || TMPDIR=$dir/tmp "$bin/moert-info" >/dev/null
    find "$dir/tmp" "$segments" -mindepth 1
}

ended() {
    local tries
    for ((tries = 0; tries < 50; tries++)); do
        [ -n "$(ls -d "${@/#//proc/}" 2>/dev/null)" ] || return 0
        sleep 0.1
    done
    return 1
}

says_once() { [ "$(grep -c '^moert' "$dir/stderr")" -eq 1 ] && grep -Eq "$1" "$dir/stderr"; }

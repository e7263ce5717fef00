#!/usr/bin/env bash
# run: all waits
# The edges of a job: on one host its ranks listen on no network; the job ends when its launcher ends; a later job removes the
# files of a killed job, but no files of a running job.
. "$(dirname "$0")/../support/e2e.sh"
export TMPDIR=$tmp/session
mkdir "$TMPDIR"
train=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --layers 1 --batch 4 --length 32 --steps 1000000 --log-every 0)

# start OUT COMMAND...: starts a training in the background as $job, and waits until the training has written metrics. $pids are
# the processes of its ranks
start() {
    local out=$1
    shift
    "$@" "${train[@]}" --out "$out" >"$log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do [ -s "$out/metrics.jsonl" ] && break; sleep 0.1; done
    pids=$(pgrep -f "^[^ ]*moert-train .*--out $out\$")
}
gone() { # PID...: waits until the processes have ended; false if they still run after 20 seconds
    local pid
    for ((i = 0; i < 200; i++)); do
        for pid in "$@"; do [ ! -e "/proc/$pid" ] || { sleep 0.1; continue 2; }; done
        return 0
    done
    return 1
}
listens() { # PID...: prints where the processes listen, as in /proc/net/tcp
    local sockets
    sockets=$(readlink $(printf '/proc/%s/fd/* ' "$@") | sed -n 's/socket:\[\(.*\)\]/\1/p')
    awk -v sockets="$sockets" 'BEGIN { n = split(sockets, list); for (i = 1; i <= n; i++) own[list[i]] }
        $4 == "0A" && $10 in own { print $2 }' /proc/net/tcp /proc/net/tcp6 | tee -a "$log"
}
directories() { # PID: prints the directories of Open MPI's files that mpirun's child PID was given
    tr '\0' '\n' <"/proc/$1/environ" | sed -nE 's/^OMPI_MCA_(orte_tmpdir_base|btl_vader_backing_directory)=//p'
}

start "$tmp/alone" "$bin/moert-train"
[ -n "$pids" ] && [ -z "$(listens $pids)" ]
verdict $? "a program without mpirun listens on no network"
[ "$(pgrep -P "$pids" | wc -l)" -eq 0 ]
verdict $? "a program without mpirun starts no daemon"
kill -TERM $pids
wait "$job"

start "$tmp/two" launch/train --np 2 --
[ "$(wc -w <<<"$pids")" -eq 2 ] && [ -z "$(listens $pids)" ]
verdict $? "ranks of one host listen on no network"
read -r rank _ <<<"$(tr '\n' ' ' <<<"$pids")"
left=$(directories "$rank") mpirun=$(ps -o ppid= -p "$rank")
kill -KILL "$job"
wait "$job" 2>/dev/null
gone $pids $mpirun
verdict $? "a job ends when launch/train is killed"
kill -KILL $pids $mpirun 2>/dev/null

cat >"$tmp/dies" <<'END'
#!/bin/bash
[ "${OMPI_COMM_WORLD_RANK:-$PMI_RANK}" != 1 ] || kill -KILL $$
exec "$PROGRAM" "$@"
END
chmod +x "$tmp/dies"
export PROGRAM; PROGRAM=$(realpath "$bin/moert-train")
logged launch/train --np 2 --program "$tmp/dies" -- "${train[@]}"
[ $? -eq 137 ] && has_lines "$log" '^train: signal 9 has ended a rank or mpirun before a rank could say more'
verdict $? "launch/train says that a rank was killed before its watchdog started"

if [ $MOERT_MPI = openmpi4 ]; then
    start "$tmp/three" launch/train --np 2 --
    read -r rank _ <<<"$(tr '\n' ' ' <<<"$pids")"
    left+=$'\n'$(directories "$rank") mpirun=$(ps -o ppid= -p "$rank")
    kill -KILL "$job" $mpirun
    wait "$job" 2>/dev/null
    gone $pids
    [ "$(wc -l <<<"$left")" -eq 4 ] && ls -d $left >>"$log" 2>&1 && [ -n "$(find $left -name 'vader_segment*')" ]
    verdict $? "files of a killed mpirun stay"
    start "$tmp/live" launch/train --np 2 --
    live=$job of_live=$pids
    read -r rank _ <<<"$(tr '\n' ' ' <<<"$pids")"
    kept=$(directories "$rank")
    touch -d '2 minutes ago' $left $kept
    logged launch/train --np 1 -- "${train[@]}" --steps 1
    verdict $? "a job starts beside a live one and one that was killed"
    ! ls -d $left >>"$log" 2>&1
    verdict $? "a later job removes the files of jobs that were killed"
    [ "$(wc -l <<<"$kept")" -eq 2 ] && ls -d $kept >>"$log" 2>&1 && kill -0 $of_live
    verdict $? "it leaves those of a live job"
    kill -TERM "$live"
    wait "$live"
    [ $? -eq 0 ] && ! ls -d $kept >>"$log" 2>&1
    verdict $? "a job that ends leaves nothing"
fi
finish

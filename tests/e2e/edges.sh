#!/usr/bin/env bash
# run: all waits
# The edges of a job: on one host its ranks listen on no network.
. "$(dirname "$0")/../support/e2e.sh"
export TMPDIR=$tmp/session
mkdir "$TMPDIR"
train=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --layers 1 --batch 4 --length 32 --steps 1000000 --log-every 0)

# start OUT COMMAND...: runs a training in the background as $job, until it has written metrics. $pids are its ranks
start() {
    local out=$1
    shift
    "$@" "${train[@]}" --out "$out" >"$log" 2>&1 &
    job=$!
    for ((i = 0; i < 600; i++)); do [ -s "$out/metrics.jsonl" ] && break; sleep 0.1; done
    pids=$(pgrep -f "^[^ ]*moert-train .*--out $out\$")
}
listens() { # PID...: prints where the processes listen, as in /proc/net/tcp
    local sockets
    sockets=$(readlink $(printf '/proc/%s/fd/* ' "$@") | sed -n 's/socket:\[\(.*\)\]/\1/p')
    awk -v sockets="$sockets" 'BEGIN { n = split(sockets, list); for (i = 1; i <= n; i++) own[list[i]] }
        $4 == "0A" && $10 in own { print $2 }' /proc/net/tcp /proc/net/tcp6 | tee -a "$log"
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
kill -TERM "$job"
wait "$job"
finish

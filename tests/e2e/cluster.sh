#!/usr/bin/env bash
# run: all waits
# Several hosts, simulated by launch/virtual-cluster. Runs on several hosts give the bits of one host. If a host is cut off,
# killed or late, the job ends soon, with a message that names rank, host and phase. A link that is down for a second does not
# disturb the job. No processes and no files are left. CLUSTER_RESTARTS=N tests the loss of hosts in N runs; CLUSTER_SEED=N
# chooses the random moments (default 1).
. "$(dirname "$0")/../support/e2e.sh"
cluster=launch/virtual-cluster
if ! "$cluster" 1 --head -- true 2>"$log"; then
    verdict 0 "cannot be tested here # SKIP $(tail -n 1 "$log")"
    finish
fi
all=$tmp # shared by all parts
CLUSTER_SEED=${CLUSTER_SEED:-1}
echo "# CLUSTER_SEED=$CLUSTER_SEED"
model=(--data LICENSE tests/golden/README.md --length 64 --eval-sequences 6 --lr 3e-3 --warmup 5 --log-every 0 --seed 7
    --hidden 64 --intermediate 96 --heads 4 --layers 2 --experts 8 --batch 8)
some_steps=(--steps 10 --save-every 10 --eval-every 10)
many_steps=(--steps 100000 --save-every 100000 --eval-every 0)

nodes() { # N RANKS [OPTION...] -- COMMAND...
    timeout -k 5 120 "$cluster" "$1" --ranks-per-node "$2" "${@:3}" >"$log" 2>&1
}

# ---- the same bits ----

bits() {
    ranks 4 "$bin/moert-train" "${model[@]}" "${some_steps[@]}" --out "$all/one"
    verdict $? "4 ranks on one host run: $(tail -n 1 "$all/one/metrics.jsonl" 2>/dev/null | cut -c 1-40)"
    finalized nodes 2 2 --rate 1gbit --down 1@2-3 -- "$bin/moert-train" "${model[@]}" "${some_steps[@]}" --out "$all/two" &&
        has_lines "$log" '^moert-train: 4 ranks, .*, exchange [a-z]+, ' && same_run "$all/one" "$all/two"
    verdict $? "2 hosts of 2 ranks give the same bits: $(grep -o 'exchange [a-z]*' "$log" | head -n 1)"
    printf '%s\n' 'node0 slots=2 # two ranks' node1 >"$all/hosts"
    finalized nodes 2 2 --head -- launch/train --hosts "$all/hosts" --program "$bin/moert-train" -- "${model[@]}" "${some_steps[@]}" \
        --out "$all/three" && has_lines "$log" '^moert-train: 3 ranks' && same_run "$all/one" "$all/three"
    verdict $? "launch/train --hosts: 3 ranks on 2 hosts give the same bits"
}

info() {
    finalized nodes 2 2 -- "$bin/moert-info" &&
        has_lines "$log" '^ +node0 +2 ' '^ +node1 +2 ' '^ +1 +node0 ' '^ +2 +node1 ' ' window +no +the ranks are on 2 hosts'
    verdict $? "moert-info sees 2 hosts of 2 ranks"
}

# ---- faults ----

# begin N RANKS: starts a long training in the background, on N hosts of RANKS ranks; sets $job
begin() {
    MOERT_TIMEOUT_S=3 timeout -k 5 300 "$cluster" "$1" --ranks-per-node "$2" -- \
        "$bin/moert-train" "${model[@]}" "${many_steps[@]}" --out "$tmp/run" >"$log" 2>&1 &
    job=$!
    while [ "$(wc -l 2>/dev/null <"$tmp/run/metrics.jsonl" || echo 0)" -lt 10 ] && kill -0 "$job"; do sleep 0.1; done
}

names() { # PATTERN: true if the watchdogs have printed exactly one line, and it matches
    [ "$(grep -c '^moert: ' "$log")" -eq 1 ] && has_lines "$log" "$1"
}

# Checks that all ranks end soon, also the ranks on the host that is cut off, and that the cluster then ends.
cut_off() {
    local from seconds status
    begin 2 2
    "$cluster" link "$(pgrep -P "$job")" 1 down
    from=$SECONDS
    while pgrep -f "^[^ ]*moert-train .*--out $tmp/run" >/dev/null && [ $((SECONDS - from)) -lt 60 ]; do sleep 0.2; done
    seconds=$((SECONDS - from))
    wait "$job"
    status=$?
    echo "ranks have ended after $seconds s, the cluster with $status" >>"$log"
    [ $seconds -lt 20 ] && [ $status -ne 0 ] && [ $status -ne 124 ] &&
        names "^moert: rank [23] on node1 is out of reach .*, at step [0-9]+ in phase '[a-z -]+'; rank 0 on node0 has waited for it for [0-9]+ s in '[a-z -]+'; ending the job"
    verdict $? "a host whose link goes down is named, with rank and phase, and all ranks end"
}

# fault N WAY TIMEOUT PATTERN TITLE: runs N ranks, one on each host, of which the last one fails (tests/tools/victim.c). The
# watchdogs end the job, not mpirun
fault() {
    # shellcheck disable=SC2016
    MOERT_TIMEOUT_S=$3 nodes "$1" 1 --head -- bash -c '. launch/environment; moert_mpirun "${MOERT_RECOVER[@]}" "$@"' mpirun \
        -n "$1" "${bin%bin}tests/victim" "$2"
    [ $? -ne 124 ] && names "^moert: $4"
    verdict $? "$5"
}
last="at step 12 in phase 'dispatch'; rank 0 on node0 has waited for it for [0-9]+ s in 'combine'; ending the job"

# the launchers of MPICH and Open MPI 5 end a job with a failed rank themselves
killed() {
    local title="a rank that is killed, alone on its host, is named at once"
    if [ $MOERT_MPI = openmpi4 ]; then
        fault 2 kill 20 "rank 1 on node1 is gone.*, $last\$" "$title"
        return
    fi
    MOERT_TIMEOUT_S=20 nodes 2 1 -- "${bin%bin}tests/victim" kill
    [ $? -ne 0 ] && has_lines "$log" 'process rank 1 with PID .* on node node1 exited on|RUNNING AT node1$'
    verdict $? "$title"
}

# ---- restarts ----

# after_checkpoint: waits until the run has a checkpoint of a later step than at the previous call
seen=0
after_checkpoint() {
    local newest=0
    while kill -0 "$job" && [ "$newest" -le "$seen" ]; do
        sleep 0.1
        newest=$(ls "$tmp/saves" 2>/dev/null | sed -nE 's/^step-0*([0-9]+)$/\1/p' | sort -n | tail -n 1)
        newest=${newest:-0}
    done
    seen=$newest
}

# lose HOST: cuts HOST off, up to a second after a checkpoint; in half of the cases also kills the rank on HOST
lose() {
    local pid
    after_checkpoint
    sleep 0.$((RANDOM % 10))
    echo "lose $1 after the checkpoint of step $seen" >>"$tmp/losses"
    for pid in $([ $((RANDOM % 2)) -eq 0 ] || pgrep -f "^[^ ]*moert-train .*--out $tmp/run"); do
        [ "$(nsenter -t "$pid" -u hostname 2>/dev/null)" != "$1" ] || kill -KILL "$pid"
    done
    "$cluster" link "$(pgrep -P "$job")" "${1#node}" down
}

# node1 gets other MOERT_* settings than the two other hosts
preflight() {
    printf '%s\n' node0 node1 node2 >"$tmp/hosts"
    cat >"$tmp/agent" <<'END'
#!/bin/sh
host=$1 set=:
shift
[ "$host" != node1 ] || set='export MOERT_LOG=info'
exec $AGENT "$host" "$set;" "$@"
END
    chmod +x "$tmp/agent"
    # shellcheck disable=SC2016
    # both jobs may hang in MPI_Finalize at their end (see `finalized`), so the time limit allows two hangs of 20 seconds
    MOERT_TIMEOUT_S=20 finalized nodes 3 1 --head -- bash -c 'export AGENT=${HYDRA_LAUNCHER_EXEC:-$OMPI_MCA_plm_rsh_agent}
        export HYDRA_LAUNCHER_EXEC=$0 OMPI_MCA_plm_rsh_agent=$0 PRTE_MCA_plm_ssh_agent=$0
        launch/train --hosts "$@"' "$tmp/agent" "$tmp/hosts" "--preflight=--slow 0.01 --seconds 0.3" --program "$bin/moert-train" -- "${model[@]}" "${some_steps[@]}" \
        --out "$tmp/run" && has_lines "$log" '^ +preflight leaves out: .*node1' '^moert-train: [12] ranks?,'
    verdict $? "launch/train --preflight leaves out a host that differs"
}

# Two of three hosts are lost at random, one after the other: the third host finishes the run alone.
restarts() { # NUMBER
    local lasting=(--steps 600 --save-every 20 --keep-last 2) status hosts
    RANDOM=$((CLUSTER_SEED + $1))
    mapfile -t hosts < <(printf 'node%d\n' 0 1 2 | shuf --random-source=<(yes "$RANDOM"))
    ranks 1 "$bin/moert-train" "${model[@]}" "${lasting[@]}" --out "$tmp/undisturbed"
    printf '%s\n' node0 node1 node2 >"$tmp/hosts"
    MOERT_TIMEOUT_S=3 timeout -k 5 300 "$cluster" 3 --head -- launch/train --hosts "$tmp/hosts" --restarts 5 --program "$bin/moert-train" -- \
        "${model[@]}" "${lasting[@]}" --out "$tmp/run" --save-dir "$tmp/saves" >"$log" 2>&1 &
    job=$!
    lose "${hosts[0]}"
    lose "${hosts[1]}"
    wait "$job"
    status=$?
    cat "$tmp/losses" >>"$log"
    [ $status -eq 0 ] && has_lines "$log" "left out: .*${hosts[0]}" "left out: .*${hosts[1]}" '^[23] +1 +1 +[1-9][0-9]+ +600 +[0-9]+ +ended well$' &&
        mv "$tmp/saves" "$tmp/run/checkpoints" && same_run "$tmp/undisturbed" "$tmp/run"
    verdict $? "launch/train --restarts goes on without hosts that are lost, to the bytes of an undisturbed run"
}

# The third host computes a wrong bit: the run is restarted without the third host
wrong_bits() {
    printf '%s\n' node0 node1 node2 >"$tmp/hosts"
    ranks 1 "$bin/moert-train" "${model[@]}" "${some_steps[@]}" --out "$tmp/whole"
    MOERT_PLANT='optimizer 2 7 0 77 3' nodes 3 1 --head -- launch/train --hosts "$tmp/hosts" --restarts 1 --program "$bin/moert-train" -- \
        "${model[@]}" "${some_steps[@]}" --verify 1 --out "$tmp/run"
    [ $? -eq 0 ] && has_lines "$log" '^moert-train: rank 2 \(node2\): wrong bits at step 7 in the update of ' 'left out: node2$' \
        '^2 +2 +2 +0 +10 +[0-9]+ +ended well$' && same_run "$tmp/whole" "$tmp/run"
    verdict $? "launch/train --restarts leaves out the host of a rank that computes wrongly"
}

# ---- what a virtual cluster leaves at its end; bad input ----

# True if TMPDIR is empty and no process has its path on the command line. Without processes, no network namespace is left, because
# a namespace ends with its processes.
nothing_left() {
    local tries=0
    while { pgrep -f "$tmp/tmp" || ls -A "$tmp/tmp"; } >>"$log" 2>&1 && [ $((tries++)) -lt 30 ]; do sleep 0.1; done
    ! pgrep -f "$tmp/tmp" >/dev/null && [ -z "$(ls -A "$tmp/tmp")" ]
}

signals() {
    local name job status
    mkdir "$tmp/tmp"
    for name in INT TERM; do
        TMPDIR=$tmp/tmp env --default-signal=INT "$cluster" 2 -- sh -c "echo has begun; sleep 60 # $tmp/tmp" >"$log" 2>&1 &
        job=$!
        for ((i = 0; i < 200; i++)); do grep -q 'has begun' "$log" && break || sleep 0.1; done
        kill -$name "$job"
        wait "$job"
        status=$?
        [ $status -gt 128 ] && nothing_left
        verdict $? "SIG$name ends a cluster, and nothing is left"
    done
}

refuses() { # PATTERN ARGUMENT...
    refused 2 "^virtual-cluster: .*$1" "virtual-cluster ${*:2}: $1" logged "$cluster" "${@:2}"
}

bad_input() {
    refuses "number of nodes is '0'" 0 -- true
    refuses 'unknown option' 2 --speed 1 -- true
    refuses "--down '2@1' is not" 2 --down 2@1 -- true
    refuses "cannot make a link of rate '1foo'" 2 --rate 1foo -- true
    refuses 'is no launch/virtual-cluster' link $$ 1 down
    nodes 2 1 -- sh -c 'exit 5'
    [ $? -eq 5 ]
    verdict $? "the exit status is the command's"
}

part bits
part cut_off
part killed
part fault 3 stop 4 "rank 2 on node2 is out of reach .*, $last \(MOERT_TIMEOUT_S=4\)\$" "a rank that is stopped, alone on its host, is named"
part fault 3 late 2 "rank 2 on node2 is late .*, $last \(MOERT_TIMEOUT_S=2\)\$" "a rank that is late is named by another host"
# any of the ranks may be the first to report the failure
part fault 3 mixed 2 "(rank [01] on node[01] .* at step 12 in phase 'combine', .* 2 \(node2, rank 2 waits at step 12 in 'dispatch'\)"`
    `"|rank 2 on node2 .* at step 12 in phase 'dispatch', .* 1 \(node1, rank 1 waits at step 12 in 'combine'\))" \
    "when all ranks wait, the message says what the others do"
part preflight
for ((n = 0; n < ${CLUSTER_RESTARTS:-1}; n++)); do part restarts $n; done
part wrong_bits
part info
part signals
part bad_input
finish

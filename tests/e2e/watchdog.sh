#!/usr/bin/env bash
# run: check waits
# A job whose last rank dies, is stopped or is late ends soon, with one message that names the rank, its step and its phase. A
# rank that stops while the watchdog does not run, at moments from before MPI_Init to after MPI_Finalize, does not hang the job
# either. No process is left. The ranks run tests/tools/victim.c. tests/unit/comm/test_watchdog.c tests more ways to fail, with a
# simulated clock. Processes that the launcher of another MPI has started are refused.
. "$(dirname "$0")/../support/e2e.sh"
program=${TEST_BUILD:-build}/tests/victim
export MOERT_TIMEOUT_S=2
TEST_JOBS=6 # the jobs wait

# soon PATTERN TITLE COMMAND...: prints the verdict on a job that would hang without the watchdog. The job must end, with an error
# unless mpirun recovers; WATCHDOG_RUN marks the job's processes. If PATTERN begins with ^moert, the watchdog must print one line,
# which matches PATTERN; otherwise it must print no line
soon() {
    local start=$SECONDS status lines=0
    [[ $1 != '^moert'* ]] || lines=1
    WATCHDOG_RUN=$tmp timeout -k 5 60 "${@:3}" >"$log" 2>&1
    status=$?
    echo "status $status after $((SECONDS - start)) s" >>"$log"
    { [ $status -ne 0 ] || [[ "$*" = *"${MOERT_RECOVER[*]-none}"* ]]; } && [ $status -ne 124 ] && [ $((SECONDS - start)) -lt 25 ] &&
        has_lines "$log" "$1" && { [ "$1" = status ] || [ "$(grep -c '^moert: ' "$log")" -eq $lines ]; } &&
        ! grep -lzsx "WATCHDOG_RUN=$tmp" /proc/[0-9]*/environ >>"$log"
    verdict $? "$2"
}

# ends PATTERN TITLE WAY RANKS [MPIRUN OPTION...]
ends() { soon "$1" "$3, $4 ranks: $2" "${MOERT_MPIRUN[@]}" "${@:5}" -n "$4" "$program" "$3"; }

# launched PATTERN WAY RANKS: runs the job under launch/train, which ends mpirun when the ranks report that the job ends. Without
# launch/train, mpirun of Open MPI 4.1 hangs or crashes in about one of 80 jobs with a rank that ends within MPI_Finalize: two
# threads of mpirun wait for each other
launched() { soon "$1" "$2, $3 ranks: the job ends" launch/train --np "$3" --program "$program" -- "$2"; }

at="at step 12 in phase 'dispatch'; rank 0 has waited for it for [0-9]+ s in 'combine'; ending the job"
limit="\(MOERT_TIMEOUT_S=2\)\$"
named="the job ends and names the rank"
# by default mpirun ends a job when a rank dies by a signal; these options leave the end of the job to the watchdog
part ends status "the job ends" kill 2
if [ $MOERT_MPI != mpich ]; then
    part ends "^moert: rank 1 on .* is gone .*, $at\$" "mpirun recovers, $named" kill 2 "${MOERT_RECOVER[@]}"
    part ends "^moert: rank 2 on .* is gone .*, ${at/rank 0/rank 1}\$" "no other is in a call, $named" alone 3 "${MOERT_RECOVER[@]}"
fi
part ends "^moert: rank 1 on .* is stopped .*, $at $limit" "$named" stop 2
part ends "^moert: rank 1 on .* is late .*, $at $limit" "$named" late 2
part ends "^moert: rank [12] reports a failure\$" "$named" report 3
part ends "^ends by itself: moert: rank 1 on .* is late .*, $at $limit" "a program that takes the message ends by itself" sink 2

for ranks in 2 3; do
    for moment in init start end finalize; do
        place='a collective call'
        [ $moment = init ] && place=MPI_Init
        [ $moment = finalize ] && place=MPI_Finalize
        part launched "^moert: rank 0 on .* has waited for [2-4] s in $place for a rank that is stopped, late or gone; ending the job $limit" \
            $moment $ranks
    done
done
part launched "^moert: a rank on .* has ended, but others of the job have not after [3-6] s and may be stopped; ending the job $limit" exit 2

# starts two processes in the way of another MPI's launcher
apart() {
    local name rank status=0
    case $MOERT_MPI in mpich) name=OMPI_COMM_WORLD ;; *) name=PMI ;; esac
    for rank in 0 1; do
        env ${name}_RANK=$rank ${name}_SIZE=2 timeout -k 5 60 "$bin/moert-train" --data LICENSE --steps 1 --log-every 0 >>"$log" 2>&1
        [ $? -eq $((rank == 0 ? 2 : 0)) ] || status=1
    done
    [ $status -eq 0 ] && [ "$(wc -l <"$log")" -eq 1 ] &&
        has_lines "$log" '^moert-train: the launcher has started 2 processes, but (Open MPI|MPICH).*, the MPI of this program, knows only this one'
    verdict $? "processes that another MPI's launcher has started do not train apart"
}
part apart
part check "a job without faults ends without an error under the watchdog" ranks 3 "$program" nothing
finish

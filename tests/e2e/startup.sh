#!/usr/bin/env bash
# run: check waits
# A rank that is stopped before MPI_Init, before the watchdog's start, after its stop or after MPI_Finalize does not hang the job. The
# job ends soon, with one message, and no process is left. The victim is tests/tools/victim.c. Processes that the launcher of
# another MPI has started are refused.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
program=${TEST_BUILD:-build}/tests/victim
export MOERT_TIMEOUT_S=2
TEST_JOBS=6 # the jobs wait

# stopped MOMENT RANKS PATTERN COMMAND...: runs a job whose last rank stops at MOMENT. STARTUP_RUN marks its processes
stopped() {
    local start=$SECONDS status seconds
    STARTUP_RUN=$tmp timeout -k 5 60 "${@:4}" "$1" >"$log" 2>&1
    status=$?
    seconds=$((SECONDS - start))
    echo "status $status after $seconds s" >>"$log"
    [ $status -ne 0 ] && [ $status -ne 124 ] && [ $seconds -lt 25 ] && [ "$(grep -c '^moert: ' "$log")" -eq 1 ] &&
        has_lines "$log" "^moert: $3; ending the job \(MOERT_TIMEOUT_S=2\)$" &&
        ! grep -lzsx "STARTUP_RUN=$tmp" /proc/[0-9]*/environ >>"$log"
    verdict $? "a rank of $2 that is stopped at '$1' does not hang the job: ended after $seconds s"
}

for ranks in 2 3; do
    for moment in init start end finalize; do
        place='a collective call'
        [ $moment = init ] && place=MPI_Init
        [ $moment = finalize ] && place=MPI_Finalize
        part stopped $moment $ranks "rank 0 on .* has waited for [2-4] s in $place for a rank that is stopped, late or gone" \
            "${MOERT_MPIRUN[@]}" -n $ranks "$program"
    done
done
part stopped exit 2 "a rank on .* has ended, but others of the job have not after [3-6] s and may be stopped" \
    launch/train --np 2 --program "$program" --

# two processes as the launcher of another MPI would start them
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
part check "a job without faults ends without an error" ranks 3 "$program" nothing
finish

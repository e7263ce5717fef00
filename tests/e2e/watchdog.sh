#!/usr/bin/env bash
# run: check waits
# A job whose last rank dies, is stopped or is late ends soon, with one message that names the rank, its step and its phase.
# tests/unit/comm/test_watchdog.c has more ways to fail, without waiting for them.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
program=${TEST_BUILD:-build}/tests/victim
export MOERT_TIMEOUT_S=2
TEST_JOBS=6 # the jobs wait

# ends PATTERN TITLE WAY RANKS [MPIRUN OPTION...]: the verdict on a job that would hang. It must end with an error, but not if there are
# options. If PATTERN begins with ^moert, the watchdog must print one line, which matches, else none
ends() {
    local start=$SECONDS status lines=0
    [[ $1 != '^moert'* ]] || lines=1
    timeout -k 5 30 "${MOERT_MPIRUN[@]}" "${@:5}" -n "$4" "$program" "$3" >"$log" 2>&1
    status=$?
    echo "status $status after $((SECONDS - start)) s" >>"$log"
    { [ $status -ne 0 ] || [ $# -gt 4 ]; } && [ $status -ne 124 ] && [ $((SECONDS - start)) -lt 25 ] && has_lines "$log" "$1" &&
        { [ "$1" = status ] || [ "$(grep -c '^moert: ' "$log")" -eq $lines ]; }
    verdict $? "$3, $4 ranks: $2"
}

at="at step 12 in phase 'dispatch'; rank 0 has waited for it for [0-9]+ s in 'combine'; ending the job"
limit="\(MOERT_TIMEOUT_S=2\)\$"
named="the job ends and names the rank"
# mpirun ends a job when a rank dies by a signal, unless told to leave that to the watchdog
part ends status "the job ends" kill 2
if [ $MOERT_MPI != mpich ]; then
    part ends "^moert: rank 1 on .* is gone .*, $at\$" "mpirun recovers, $named" kill 2 "${MOERT_RECOVER[@]}"
    part ends "^moert: rank 2 on .* is gone .*, ${at/rank 0/rank 1}\$" "no other is in a call, $named" alone 3 "${MOERT_RECOVER[@]}"
fi
part ends "^moert: rank 1 on .* is stopped .*, $at $limit" "$named" stop 2
part ends "^moert: rank 1 on .* is late .*, $at $limit" "$named" late 2
part ends "^moert: rank [12] reports a failure\$" "$named" report 3
part ends "^ends by itself: moert: rank 1 on .* is late .*, $at $limit" "a program that takes the message ends by itself" sink 2
part check "a job without faults ends without an error under the watchdog" ranks 2 "$program" nothing
finish

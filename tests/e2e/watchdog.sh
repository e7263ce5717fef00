#!/usr/bin/env bash
# run: check all
# A job whose last rank dies, is stopped or is late ends soon, with one message that names the rank, its step and its phase.
# tests/unit/comm/test_watchdog.c has more ways to fail, without waiting for them.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
program=${TEST_BUILD:-build}/tests/victim
export MOERT_TIMEOUT_S=3

# hang WAY RANKS [MPIRUN OPTION...]: runs a job that would hang; fills $log, sets $status and $seconds
hang() {
    local way=$1 ranks=$2 start=$SECONDS
    shift 2
    timeout -k 5 30 "${MOERT_MPIRUN[@]}" "$@" -n "$ranks" "$program" "$way" >"$log" 2>&1
    status=$?
    seconds=$((SECONDS - start))
    echo "status $status after $seconds s" >>"$log"
}

says() { # PATTERN: true if the watchdog has printed exactly one line, and it matches
    [ "$(grep -c '^moert: ' "$log")" -eq 1 ] && grep -Eq "$1" "$log"
}

ends() { # WAY RANKS PATTERN
    hang "$1" "$2"
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$seconds" -lt 25 ] && says "$3"
    verdict $? "$1, $2 ranks: the job ends and names the rank"
}

at="at step 12 in phase 'dispatch'; rank 0 has waited for it for [0-9]+ s in 'combine'; ending the job"
# mpirun ends a job when a rank dies by a signal, unless told to leave that to the watchdog
hang kill 2
[ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$seconds" -lt 25 ]
verdict $? "kill, 2 ranks: the job ends"
if [ $MOERT_MPI != mpich ]; then
    hang kill 2 "${MOERT_RECOVER[@]}"
    [ "$status" -ne 124 ] && [ "$seconds" -lt 25 ] && says "^moert: rank 1 on .* is gone .*, $at\$"
    verdict $? "kill, 2 ranks, mpirun recovers: the watchdog ends the job and names the rank"
    hang alone 3 "${MOERT_RECOVER[@]}"
    [ "$status" -ne 124 ] && [ "$seconds" -lt 25 ] && says "^moert: rank 2 on .* is gone .*, ${at/rank 0/rank 1}\$"
    verdict $? "kill, 3 ranks that are not in a call: the watchdog ends the job and names the rank"
fi
ends stop 2 "^moert: rank 1 on .* is stopped .*, $at \(MOERT_TIMEOUT_S=3\)\$"
ends late 2 "^moert: rank 1 on .* is late .*, $at \(MOERT_TIMEOUT_S=3\)\$"
ends report 3 "^moert: rank [12] reports a failure\$"

ends_itself() {
    hang sink 2
    [ "$status" -ne 0 ] && [ "$status" -ne 124 ] && [ "$seconds" -lt 25 ] && ! grep -q '^moert: ' "$log" &&
        grep -Eq "^ends by itself: moert: rank 1 on .* is late .*, $at \(MOERT_TIMEOUT_S=3\)\$" "$log"
}
ends_itself
verdict $? "a program that takes the watchdog's message gets control back and ends by itself"
check "a job without faults ends without an error under the watchdog" timeout -k 5 30 "${MOERT_MPIRUN[@]}" -n 2 "$program" nothing
finish

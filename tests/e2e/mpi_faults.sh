#!/usr/bin/env bash
# An MPI call fails on one rank of two: the job ends at once, not only when the watchdog does, and its one message names the call.
# Start, steps and save of a training are covered: the first call of every function, and some calls in between; with --all, every call.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
library=${TEST_BUILD:-build}/tests/mpi_fault.so
train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 32 --heads 2 --layers 1 --experts 4 --batch 4 --length 32
    --steps 2 --save-every 1 --log-every 0)

# faulty OPTION...: trains on 2 ranks; OPTION... set the variables of tests/tools/mpi_fault.c
faulty() {
    rm -rf "$tmp/run"
    timeout -k 5 50 "${MOERT_MPIRUN[@]}" -n 2 env LD_PRELOAD="$library" MPI_FAULT_RANK=1 MOERT_TIMEOUT_S=60 "$@" "${train[@]}" \
        --out "$tmp/run" >/dev/null 2>"$log" </dev/null
}

fault() { # NUMBER: how often MPI_Testall is called depends on time, so this number may be that of another call than in the list
    local status name
    faulty MPI_FAULT_CALL="$1"
    status=$?
    name=$(sed -n "s/^mpi_fault $1 //p" "$log")
    [ $status -eq 1 ] && [ -n "$name" ] && [ "$(grep -c '^moert[-:]' "$log")" -eq 1 ] && grep -q "^moert-train: .*$name" "$log"
    verdict $? "call $1 of rank 1 fails: the job ends at once and names it"
}

faulty MPI_FAULT_LIST=1
check "a run without a fault" grep -q '^mpi_fault ' "$log"
sed -n 's/^mpi_fault //p' "$log" >"$tmp/calls"
if [ "${TEST_ALL:-0}" -eq 0 ]; then
    awk '!seen[$2]++ || NR % 97 == 0 { print $1 }' "$tmp/calls" >"$tmp/chosen"
else
    cut -d ' ' -f 1 "$tmp/calls" >"$tmp/chosen"
fi
while read -r number; do part fault "$number"; done <"$tmp/chosen"
finish

# Sourced by tests/e2e/*.sh: TAP lines, a temporary folder, runs under mpirun.
#
#   verdict STATUS TITLE     one TAP line; on failure with the log of the last run
#   ranks R COMMAND...       runs COMMAND on R ranks; all output goes to $log
#   alone COMMAND...         the same on one rank, without mpirun, which takes longer than a short command
#   finish                   the plan; the script's exit status
. launch/environment
bin=${TEST_BUILD:-build}/bin
compare=${TEST_BUILD:-build}/tests/compare
folder=$(mktemp -d)
log=$folder/log
trap 'rm -rf "$folder"' EXIT
e2e_number=0 e2e_failed=0

verdict() {
    e2e_number=$((e2e_number + 1))
    if [ "$1" -eq 0 ]; then
        echo "ok $e2e_number - $2"
    else
        echo "not ok $e2e_number - $2"
        tr '\r' '\n' <"$log" | tail -n 20 | sed 's/^/# /'
        e2e_failed=1
    fi
}

ranks() {
    local count=$1
    shift
    timeout -k 5 120 "${MOERT_MPIRUN[@]}" -n "$count" "$@" >"$log" 2>&1
}

# An isolated singleton starts no daemon of Open MPI; ob1 named looks for no other transports.
alone() {
    OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_pml=ob1 timeout -k 5 120 "$@" >"$log" 2>&1
}

finish() {
    echo "1..$e2e_number"
    exit $e2e_failed
}

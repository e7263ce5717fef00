# Sourced by tests/e2e/*.sh. Changes to the root of the repository, and defines TAP lines, a temporary directory $tmp and runs
# under mpirun.
#
#   verdict STATUS TITLE     prints one TAP line; if STATUS is not 0, also the end of $log
#   check TITLE COMMAND...   appends the output of COMMAND to $log and prints the verdict on COMMAND's status
#   refused STATUS TEXT TITLE COMMAND...  prints the verdict on COMMAND, whose output fills $log: COMMAND must end with STATUS
#                            and print one message of a program or script; some line of $log must match TEXT
#   ends STATUS TEXT TITLE COMMAND...   as `refused`, but COMMAND may have begun its work and printed other lines
#   logged COMMAND...        runs COMMAND; all output goes to $log
#   has_lines FILE PATTERN...    true if each pattern matches a line of FILE; otherwise $log names the pattern
#   digits RUN               prints the metrics of a run directory, except times and values that depend on the number of ranks
#   same_run RUN RUN         as in tests/support/digits.sh
#   ranks R COMMAND...       runs COMMAND on R ranks; all output goes to $log
#   mixed N COMMAND... : N COMMAND...    runs several commands as ranks of one job: the first N ranks run the first command;
#                            all output goes to $log. (Given ':', mpirun of Open MPI 5.0.7 crashes.)
#   alone COMMAND...         runs COMMAND on one rank without mpirun, which is faster for short commands
#   engine NAME              prints NAME. If MOERT_DEVICE is gpu, it prints staged instead of window or node, because not all GPUs
#                            support window and node
#   node_ranks NAME          prints how many ranks count as a host for that engine: 2 for node, else 0 (all)
#   part COMMAND...          runs COMMAND in the background with its own $tmp and $log; at most one part per core at a time
#   only TIER COMMAND...     runs COMMAND if the script runs in the tier TIER, check or all (see tests/run)
#   join                     waits for all parts and prints their lines in order
#   finish                   joins, prints the TAP plan and exits with the script's status
set -u
cd "$(dirname "${BASH_SOURCE[0]}")/../.." || exit 1
. launch/environment
TEST_TIER=${TEST_TIER:-check}
bin=${TEST_BUILD:-build}/bin
compare=${TEST_BUILD:-build}/tests/compare
tmp=$(mktemp -d)
log=$tmp/log
trap 'rm -rf "$tmp"' EXIT
e2e_number=0 e2e_failed=0 e2e_parts=0 e2e_joined=0

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

check() {
    "${@:2}" >>"$log" 2>&1
    verdict $? "$1"
}

refused() {
    # mpirun of Open MPI 4 otherwise waits two seconds for ranks of a failed job. Only ranks that are killed or stopped need the
    # two seconds
    OMPI_MCA_odls_base_sigkill_timeout=0 "${@:4}"
    [ $? -eq "$1" ] && [ "$(grep -Ec '^(moert|bench_|train: |stop: |preflight: |scaling: |virtual-cluster: |install-deps: |tokenize: |generate: |evaluate: )' "$log")" -eq 1 ] && grep -Eq -e "$2" "$log"
    verdict $? "$3"
}

ends() {
    "${@:4}"
    [ $? -eq "$1" ] && has_lines "$log" "$2"
    verdict $? "$3"
}

logged() { "$@" >"$log" 2>&1; }

has_lines() {
    local pattern
    for pattern in "${@:2}"; do
        grep -Eq -e "$pattern" "$1" || { echo "no line like: $pattern" >>"$log"; return 1; }
    done
}

. tests/support/digits.sh

ranks() {
    local count=$1
    shift
    timeout -k 5 120 "${MOERT_MPIRUN[@]}" -n "$count" "$@" >"$log" 2>&1
}

# True if a logged job has succeeded, or MPI_Finalize does not return: over TCP, UCX of MPICH sometimes waits there for a rank that
# has passed it (github.com/openucx/ucx/issues/8738)
finalized() {
    "$@" || { [ $MOERT_MPI = mpich ] && has_lines "$log" '^moert: rank [0-9] on node[0-9] has waited for .* in MPI_Finalize'; }
}

mixed() {
    local script=$tmp/mixed-$BASHPID count=0 command
    echo 'rank=${OMPI_COMM_WORLD_RANK:-$PMI_RANK}' >"$script"
    while [ $# -gt 0 ]; do
        count=$((count + $1)) command=()
        shift
        while [ $# -gt 0 ] && [ "$1" != : ]; do
            command+=("$1")
            shift
        done
        shift
        printf '[ "$rank" -ge %d ] || exec %s\n' "$count" "${command[*]@Q}" >>"$script"
    done
    ranks "$count" bash "$script"
}

# An isolated singleton starts no daemon of Open MPI. Naming ob1 skips the search for other transports. All isolated singletons
# have job number 0: if they shared a session directory, one that ends would remove the files of another.
alone() {
    OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_orte_tmpdir_base=$tmp OMPI_MCA_pml=ob1 timeout -k 5 120 "$@" >"$log" 2>&1
}

engine() {
    case $1-${MOERT_DEVICE:-} in
    window-gpu | node-gpu) echo staged ;;
    *) echo "$1" ;;
    esac
}

node_ranks() {
    if [ "$1" = node ]; then echo 2; else echo 0; fi
}

part() {
    while [ "$(jobs -pr | wc -l)" -ge "${TEST_JOBS:-$(nproc)}" ]; do wait -n; done
    local own=$tmp/part-$((e2e_parts++))
    mkdir "$own"
    (tmp=$own log=$own/log && "$@"; echo end) >"$own.lines" &
}

only() { [ "$TEST_TIER" != "$1" ] || "${@:2}"; }

join() {
    local lines line
    wait
    for (( ; e2e_joined < e2e_parts; e2e_joined++)); do
        lines=$tmp/part-$e2e_joined.lines
        [ "$(tail -n 1 "$lines")" = end ] || echo "not ok 0 - part $e2e_joined broke off" >>"$lines"
        while IFS= read -r line; do
            case $line in
            end) continue ;;
            "ok "* | "not ok "*)
                e2e_number=$((e2e_number + 1))
                [ "${line%% *}" = ok ] || e2e_failed=1
                line="${line%%ok *}ok $e2e_number ${line#*ok [0-9]* }"
                ;;
            esac
            echo "$line"
        done <"$lines"
    done
}

finish() {
    join
    echo "1..$e2e_number"
    exit $e2e_failed
}

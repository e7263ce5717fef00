#!/usr/bin/env bash
# run: check
# tests/commit_message accepts messages that follow docs/contributing.md, and names the faults of others.
. "$(dirname "$0")/../support/e2e.sh"

message() { # WANTED SUBJECT [LINE...]: checks the verdict on a message: the complaint WANTED, or none if WANTED is empty
    printf '%s\n' "${@:2}" >"$tmp/message"
    tests/commit_message "$tmp/message" 2>"$log"
    local status=$?
    if [ -z "$1" ]; then [ $status -eq 0 ] && [ ! -s "$log" ]; else [ $status -eq 1 ] && grep -qF -- "$1" "$log"; fi
    verdict $? "${1:-a message is taken}: $2"
}
message '' 'exchange: retry a lost beacon before ending the job' '' 'A beacon is one datagram, and hosts under load lose some.'
message '' 'gemm: Pack panels in 12 % less time' '' 'bench_gemm, 2 cores, median of 9: 4.1 ms before, 3.6 ms after.' '# a comment of git'
message 'at most 72' "exchange: $(printf 'a%.0s' {1..63})" '' 'Why.'
message 'module: what it does' 'Retry a lost beacon' '' 'Why.'
message 'ends with a period' 'exchange: retry a lost beacon.' '' 'Why.'
message 'second line must be empty' 'exchange: retry a lost beacon' 'Why.'
message 'no body' 'exchange: retry a lost beacon' '' 'Signed-off-by: A <a@example.org>'
message 'has no figure' 'gemm: Pack panels 2 times as fast' '' 'The inner loop is unrolled.'
finish

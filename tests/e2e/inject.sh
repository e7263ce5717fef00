#!/usr/bin/env bash
# run: all
# In each run, tests/inject makes one call fail: each function of MPI in a training on 2 ranks, and some call sites of every
# program on 1, 2 or 3 ranks. Each commit tests other call sites.
. "$(dirname "$0")/../support/e2e.sh"
inject() { logged tests/inject --build "${TEST_BUILD:-build}" --state "$tmp/state" "$@"; }
inject --only '^MPI_' --each --ranks 2 train
status=$?
inject --ranks one --sample 5
[ $? -eq 0 ] && [ $status -eq 0 ] && [ "$(wc -l <"$tmp/state/results")" -gt 50 ]
verdict $? "the runs of this sample end as they should"
while read -r scenario ranks site function rank verdict detail; do
    [[ $verdict = @(good|tolerated|warned|unreached) ]]
    verdict $? "$function ($site) fails on rank $rank of $ranks in $scenario: $verdict $detail"
done <"$tmp/state/results"
finish

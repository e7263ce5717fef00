#!/usr/bin/env bash
# run: night
# Some bits of device memory flip, one in each run (tests/flips): those that change checkpoints or losses are found, and no healthy rank
# is named. `tests/flips` alone takes hours for a thousand of them.
. "$(dirname "$0")/../support/e2e.sh"
flips() { logged tests/flips --build "${TEST_BUILD:-build}" --state "$tmp/state" --jobs "${TEST_JOBS:-$(nproc)}" "$@"; }
flips --flips 12
verdict $? "three ranks: 12 flips of each precision"
flips --flips 6 --ranks 2 --precisions bf16
verdict $? "two ranks: 6 flips"
finish

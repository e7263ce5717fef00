#!/usr/bin/env bash
# run: night
# Each run flips one bit of device memory (tests/flips). --verify must find the bits that change checkpoints or losses, and must
# not name a healthy rank. This script flips few bits; `tests/flips` flips a thousand, which takes hours.
. "$(dirname "$0")/../support/e2e.sh"
flips() { logged tests/flips --build "${TEST_BUILD:-build}" --state "$tmp/state" --jobs "${TEST_JOBS:-$(nproc)}" "$@"; }
flips --flips 12
verdict $? "three ranks: 12 flips of each precision"
flips --flips 6 --ranks 2 --precisions bf16
verdict $? "two ranks: 6 flips"
finish

#!/usr/bin/env bash
# moert-preflight on 2 ranks: equal ranks are ready. A rank with another build, other settings and a slow device is named, and the exit
# code is 1. launch/preflight refuses bad arguments.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
program=$bin/moert-preflight
quick=(--seconds 0.3 --slow 0.2)
json=$tmp/preflight.json

ranks 2 "$program" "${quick[@]}" --json "$json"
[ $? -eq 0 ] && grep -q '^preflight: 2 ranks on 1 node: ready$' "$log" && ! grep -q '^WRONG' "$log"
verdict $? "two equal ranks are ready"
[ "$(grep -c '"gemm_gflops": [1-9]' "$json")" -eq 2 ] && [ "$(grep -c '"inside": true' "$json")" -eq 1 ] && grep -q '"findings": \[\]\|"findings": \[$' "$json"
verdict $? "the JSON has both devices and their link"

# rank 1: the same program with another commit text, and kernels in GPU form, which are tens of times slower on a CPU
commit=$(sed -n 's/.*MOERT_COMMIT "\(.*\)".*/\1/p' "${TEST_BUILD:-build}/commit.h")
sed "s/$commit/$(tr 'a-z0-9' 'x' <<<"$commit")/g" "$program" >"$tmp/other" && chmod +x "$tmp/other"
timeout -k 5 120 "${MOERT_MPIRUN[@]}" -n 1 "$program" "${quick[@]}" : -n 1 env MOERT_FORM=gpu "$tmp/other" "${quick[@]}" >"$log" 2>&1
[ $? -eq 1 ] && grep -q '^preflight: 2 ranks on 1 node: [2-9] things are wrong$' "$log" && grep -q '^moert-preflight: .*[2-9] findings above' "$log"
verdict $? "a rank that differs: exit code 1, one message"
grep -q "^WRONG: rank 1 (.*): another moert: [0-9.]* x.*; the others: [0-9.]* $commit\$" "$log"
verdict $? "its build is named, with both commits"
grep -q '^WRONG: rank 1 (.*): other MOERT_\* variables: .*MOERT_FORM=gpu.*; the others: ' "$log"
verdict $? "its settings are named"
[ "${MOERT_DEVICE:-}" = gpu ] || grep -q '^WRONG: rank 1 (.*): slow: 0\.[01][0-9] of the median GEMM rate' "$log"
verdict $? "its slow GEMMs are named"

refused 2 "preflight: -n is 'none'" "launch/preflight: a bad number of ranks is refused" logged launch/preflight -n none
refused 2 "cannot read '.*missing'" "launch/preflight: a missing file of hosts is refused" \
    logged launch/preflight --hosts "$tmp/missing"
refused 2 'moert-preflight: --slow' "--slow above 1 is bad usage" ranks 1 "$program" --slow 2
finish

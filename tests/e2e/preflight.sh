#!/usr/bin/env bash
# run: all alone
# moert-preflight on 2 ranks: if the ranks are equal, the machine is reported as ready. A rank with another build, other settings
# and a slow device is named, and the exit code is 1. launch/preflight, launch/train and launch/scaling refuse bad arguments and
# bad hosts files.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-preflight
quick=(--seconds 0.3 --slow 0.2)
json=$tmp/preflight.json

ranks 2 "$program" "${quick[@]}" --json "$json"
[ $? -eq 0 ] && grep -q '^preflight: 2 ranks on 1 node: ready$' "$log" && ! grep -q '^WRONG' "$log"
verdict $? "two equal ranks are ready"
[ "$(grep -c '"gemm_gflops": [1-9]' "$json")" -eq 2 ] && [ "$(grep -c '"inside": true' "$json")" -eq 1 ] && grep -q '"findings": \[\]\|"findings": \[$' "$json"
verdict $? "the JSON has both devices and their link"

# rank 1: the same program with another commit text, kernels in GPU form, and the reference backend, whose GEMMs are hundreds of
# times slower even on a loaded machine
commit=$(sed -n 's/.*MOERT_COMMIT "\(.*\)".*/\1/p' "${TEST_BUILD:-build}/commit.h")
sed "s/$commit/$(tr 'a-z0-9' 'x' <<<"$commit")/g" "$program" >"$tmp/other" && chmod +x "$tmp/other"
mixed 1 "$program" "${quick[@]}" : 1 env MOERT_FORM=gpu MOERT_BACKEND=reference "$tmp/other" "${quick[@]}"
[ $? -eq 1 ] && grep -q '^preflight: 2 ranks on 1 node: [2-9] things are wrong$' "$log" && grep -q '^moert-preflight: .*[2-9] findings above' "$log"
verdict $? "a rank that differs: exit code 1, one message"
grep -q "^WRONG: rank 1 (.*): another moert: [0-9.]* x.*; the others: [0-9.]* $commit\$" "$log"
verdict $? "its build is named, with both commits"
grep -q '^WRONG: rank 1 (.*): other MOERT_\* variables: .*MOERT_FORM=gpu.*; the others: ' "$log"
verdict $? "its settings are named"
[ "${MOERT_DEVICE:-}" = gpu ] || grep -q '^WRONG: rank 1 (.*): slow: 0\.[01][0-9] of the median GEMM rate' "$log"
verdict $? "its slow GEMMs are named"

refused 2 "preflight: --np is 'none'" "launch/preflight: a bad number of ranks is refused" logged launch/preflight --np none

# hosts PATTERN TEXT: prints the verdict on the refusal of a hosts file with the content TEXT; its message must match PATTERN
hosts() {
    printf "$2" >"$tmp/hosts"
    logged moert_hosts "$tmp/hosts"
    [ $? -eq 1 ] && [ "$(wc -l <"$log")" -eq 1 ] && has_lines "$log" "hosts$1"
    verdict $? "the hosts '$2' are refused"
}
hosts ':2: slots=abc: expected a number of ranks' 'node1 slots=2 # two\nnode2 slots=abc\n'
hosts ':1: slots=0: expected a number of ranks' 'node1 slots=0\n'
hosts ':1: max-slots=-4: expected a number of ranks' 'node1 slots = 2 max-slots=-4\n'
hosts ':3: sluts=2: unknown; known are slots=N' '\n# two ranks\nnode1 sluts=2\n'
hosts ':1: slots=2: expected the name of a host' 'slots=2\n'
hosts ':1: node1;2: expected the name of a host' 'node1;2\n'
hosts ':1: ends in a carriage return' 'node1 slots=2\r\n'
hosts ': names no host' '# none\n'
for script in train preflight scaling; do
    refused 2 "^$script: .*hosts: names no host" "launch/$script checks its hosts" logged timeout 20 launch/$script --hosts "$tmp/hosts"
done
mkfifo "$tmp/pipe"
for path in missing pipe; do
    refused 2 "cannot read '.*$path' as a regular file" "launch/preflight: a $path is refused as a file of hosts" \
        logged timeout 20 launch/preflight --hosts "$tmp/$path"
done
printf '# none\nnode1 slots = 2\n\nnode2 max_slots=4 # one\n' >"$tmp/hosts"
[ "$(moert_hosts "$tmp/hosts")" = $'node1 2\nnode2 1' ]
verdict $? "hosts with comments and spaces are accepted"

refused 2 'moert-preflight: --slow' "--slow above 1 is bad usage" ranks 1 "$program" --slow 2
finish

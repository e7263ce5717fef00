#!/usr/bin/env bash
# run: all
# The mutation tester (tests/tools/mutate): its own tests, and a run on a project of three functions: a tested one, an untested
# one, and one that leaves no code in an object file. Skipped if python3 or git is missing.
. "$(dirname "$0")/../support/e2e.sh"
if ! command -v python3 >/dev/null || ! command -v git >/dev/null; then
    verdict 0 "mutations # SKIP no python3 or no git"
    finish
fi
check "places, kinds and draws are those of a small sample" tests/tools/mutate --self-test

project=$tmp/project
mkdir -p "$project"/{src/sum,tests/unit/sum}
cat >"$project/src/sum/sum.c" <<'END'
int tested(int a, int b) {
    return a + b;
}
int untested(int a, int b) {
    return a - b;
}
static inline int unused(int a, int b) {
    return a * b;
}
END
cat >"$project/tests/unit/sum/test_sum.c" <<'END'
int tested(int, int);
int main(void) {
    return tested(2, 3) != 5;
}
END
cat >"$project/Makefile" <<'END'
all: build/src/sum/sum.o
tests: build/tests/unit/sum/test_sum
build/%.o: %.c
	mkdir -p $(@D) && $(CC) $(CFLAGS) -c -o $@ $<
build/tests/unit/sum/test_sum: tests/unit/sum/test_sum.c build/src/sum/sum.o
	mkdir -p $(@D) && $(CC) -o $@ $^
END
cat >"$project/tests/run" <<'END'
#!/bin/sh
case $* in *--list) echo check test_sum np=1; exit ;; esac
build/tests/unit/sum/test_sum || { echo "[1 of 1, 0:00 left] FAIL  test_sum np=1   status $?    0 s"; exit 1; }
END
chmod +x "$project/tests/run"
commit() {
    git -C "$project" add Makefile src tests
    git -C "$project" -c user.name=m -c user.email=m -c commit.gpgsign=false commit -qm m
}
mutate() { MOERT_CACHE_DIR=$tmp/none logged tests/tools/mutate --root "$project" --number 3 --seed 1 --limit 2 "$@"; } # three mutants, one in each function
git -C "$project" init -q && commit

mutate --tier check
[ $? -eq 0 ] && has_lines "$log" 'sum.c:2  operator  .* a \+ b; .*  ->  .* a - b; .* : found by test_sum np=1 of check$' 'sum.c:5  .* : survived$' \
    'sum.c:8  .* : equivalent \(same object code\)$' '^mutate: 1 found \(1 by check\), 1 survived, 1 equivalent; 0 others did not compile$'
verdict $? "one mutant is found, one survives, and one has no effect on the object file"
[ "$(git -C "$project" status --porcelain)" = '?? build/' ]
verdict $? "the user's sources stay as they are"

sed -i '$d' "$project/build/mutate/3-1.txt" # as if the call had been stopped before the last mutant
mutate --tier check
[ $? -eq 0 ] && [ "$(grep -c '^ *[0-9]  .* : [a-z]' "$log")" -eq 2 ] && has_lines "$log" '^   3  ' '^mutate: 1 found \(1 by check\), 1 survived, 1 equivalent;'
verdict $? "another call tries only what is left, and lists the survivor again"

mutate --tier check --only 2
[ $? -eq 0 ] && has_lines "$log" '^   2  .* : equivalent' '^mutate: 0 found \(0 by check\), 0 survived, 1 equivalent;'
verdict $? "--only tries one mutant again"

sed -i 's/return tested.*/while (tested(2, 3) != 5);/' "$project/tests/unit/sum/test_sum.c" && commit
mutate --tier module
has_lines "$log" 'sum.c:2 .* : found by test_sum \(no end in 2 s\) of check$' '^mutate: 1 found '
verdict $? "after another commit all are tried; a test that does not end has found its mutant"

sed -i 's/while.*/return 1;/' "$project/tests/unit/sum/test_sum.c" && commit
! mutate --tier module && has_lines "$log" '^mutate: test_sum also fails without a mutation'
verdict $? "a test that fails without a mutation is reported"
finish

#!/usr/bin/env bash
# run: check
# For each size limit of docs/contributing.md, tests/lint_sizes.awk reports a file that exceeds only this limit, and accepts files
# exactly at the limits.
. "$(dirname "$0")/../support/e2e.sh"

lines() { yes '    x++;' | head -n "$1"; }
parameters() { seq -f 'int a%g' -s ', ' "$1"; }

judge() { # WANTED FILE...: WANTED is the one complaint about files in $tmp, or nothing
    (cd "$tmp" && awk -f "$OLDPWD/tests/lint_sizes.awk" "${@:2}") >"$log"
    local status=$?
    if [ -z "$1" ]; then [ $status -eq 0 ] && [ ! -s "$log" ]; else [ $status -eq 1 ] && [ "$(cat "$log")" = "$1" ]; fi
    verdict $? "${1:-a legal file is taken}: ${*:2}"
}
plant() { # WANTED FILE: the text of FILE is standard input
    mkdir -p "$tmp/$(dirname "$2")"
    cat >"$tmp/$2"
    judge "$@"
}
body() { printf '%s {\n' "$1"; lines "$2"; echo '}'; } # SIGNATURE LINES

plant '' src/legal.c < <(lines 500)
for file in src/long.c bench/long.h tests/unit/io/long.c; do
    plant "$file:501: 501 lines in a file, at most 500" $file < <(lines 501)
done
plant '' src/legal.c < <(body 'static void f(void)' 57)
plant 'bench/f.c:1: f: 60 lines in a function, at most 59' bench/f.c < <(body 'static void f(void)' 58)
plant '' src/legal.c < <(body "void g($(parameters 6))" 1)
plant 'src/g.c:2: g: 7 parameters, at most 6' src/g.c < <(echo '/* g */'; body "static int *g($(parameters 7))" 1)
plant 'src/h.c:1: h: 7 parameters, at most 6' src/h.c < <(body "int h(void (*f)(int, int), /* a, b */
      $(parameters 6))" 1)
plant '' kernels/a/legal.h < <(lines 300)
for file in kernels/a/long.cl kernels/a/long.h; do
    plant "$file:301: 301 lines in a file, at most 300" $file < <(lines 301)
done
plant '' kernels/legal.cl < <(body "kernel __attribute__((reqd_work_group_size(1, 1, 1))) void f($(parameters 10))" 58)
plant 'kernels/f.cl:1: f: 61 lines in a function, at most 60' kernels/f.cl < <(body 'INLINED void f(int a)' 59)
plant 'kernels/g.cl:1: g: 11 parameters, at most 10' kernels/g.cl < <(body "KERNEL void g($(parameters 11))" 1)
plant '' src/table.h < <(echo '#define TABLE(X) \'; yes '    X(a, b, c, d, e, f, g) \' | head -n 80)
plant '' src/inner.h <<<'#include "other/outer.h"'
plant '' src/outer.h < <(echo '#include "inner.h"'; body 'void f(void)' 1)
judge '' src/inner.h src/outer.h
plant '' src/other/outer.h <<<'#  include "../outer.h"'
judge 'includes go in a circle: src/inner.h src/other/outer.h src/outer.h src/inner.h' src/inner.h src/other/outer.h src/outer.h
plant '' kernels/inner.h <<<'#include "outer.h"'
plant '' kernels/outer.h <<<'#include "../kernels/inner.h"'
judge 'includes go in a circle: kernels/inner.h kernels/outer.h kernels/inner.h' kernels/inner.h kernels/outer.h
finish

#!/usr/bin/env bash
# The guide's programs compile against an installed moert through pkg-config, with the static and the shared library. They print the
# digits that the guide shows, on 1 and on 2 ranks. The README's excerpt is part of one of them. The public headers compile as C++. Links
# between the pages of the documentation lead to an existing file and heading.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
build=$(realpath --relative-to=. "${TEST_BUILD:-build}")
check "make install" make --no-print-directory BUILD="$build" PREFIX="$tmp/prefix" install
export PKG_CONFIG_PATH=$tmp/prefix/lib/pkgconfig

awk -v directory="$tmp" '/^```c$/ {file = directory "/" ++n ".c"; next} /^```$/ {file = ""} file {print >file}' docs/guide.md
[ "$(find "$tmp" -maxdepth 1 -name '[0-9].c' -size +1k | wc -l)" -eq 2 ]
verdict $? "the guide holds two programs"
sed -n '/^```c$/,/^```$/{/^```/!p}' README.md >"$tmp/excerpt"
[ -s "$tmp/excerpt" ] && ! grep -vxFf "$tmp/1.c" "$tmp/excerpt" >"$log"
verdict $? "the README's excerpt is part of the guide's first program"
flags="$(pkg-config --cflags --libs moert) -Wl,-rpath,$tmp/prefix/lib"

for program in 1 2; do
    own=$tmp/$program
    # shellcheck disable=SC2086
    check "program $program links with the shared library" gcc -std=c11 "$own.c" -o "$own.shared" $flags
    # shellcheck disable=SC2086
    gcc -std=c11 "$own.c" -o "$own.static" -I"$tmp/prefix/include" "$tmp/prefix/lib/libmoert.a" \
        $(pkg-config --cflags --libs ompi-c OpenCL hwloc jansson libxxhash) -lm -ldl -pthread 2>>"$log"
    verdict $? "program $program links with the static library"
    for ranks in 1 2; do
        "${MOERT_MPIRUN[@]}" -n $ranks "$own.shared" >"$own.out$ranks" 2>"$log"
        verdict $? "program $program runs on $ranks ranks"
    done
    "${MOERT_MPIRUN[@]}" -n 1 "$own.static" >"$own.static.out" 2>"$log"
    check "both linkages of program $program give the same digits" cmp -s "$own.out1" "$own.static.out"
    [ "$(sed 's/.*= //' "$own.out1")" = "$(sort "$own.out2" | head -n 1 | sed 's/.*= //')" ]
    verdict $? "program $program gives the same digits on 1 and 2 ranks"
done
[ -s "$tmp/2.out1" ] && grep -qxF "$(cat "$tmp/2.out1")" docs/guide.md
verdict $? "the second program prints the line that the guide shows"

if command -v g++ >/dev/null; then
    printf '#include <moert/moert.h>\nmoert_quantize op = MOERT_QUANTIZE_INIT;\n' >"$tmp/header.cc"
    # shellcheck disable=SC2046
    check "the public headers are C++, too" g++ -std=c++20 -Wall -Werror -fsyntax-only "$tmp/header.cc" $(pkg-config --cflags moert)
fi
nm -D --defined-only "$tmp/prefix/lib/libmoert.so" | awk '$2 == "T" || $2 == "B" || $2 == "D" {print $3}' | grep -v '^moert_' >"$tmp/foreign"
check "the library exports moert_ names only" [ ! -s "$tmp/foreign" ]

# GitHub's anchor of a heading: lower case, without punctuation, hyphens for spaces
headings() { sed -n '/^```/,/^```/d; s/^##* //p' "$1" | tr '[:upper:] ' '[:lower:]-' | tr -cd '[:alnum:]_\n-'; }
for page in README.md docs/*.md; do
    sed '/^```/,/^```/d' "$page" | grep -oE '\]\([^)]+\)' | sed 's/^](//; s/)$//' | grep -v '^https:' | while IFS='#' read -r file heading; do
        target=${file:+$(dirname "$page")/$file}
        target=${target:-$page}
        [ -e "$target" ] || echo "$page: no file $file"
        [ -z "$heading" ] || headings "$target" | grep -qxF -- "$heading" || echo "$page: no heading $file#$heading"
    done
done >"$log" 2>&1
[ ! -s "$log" ]
verdict $? "links between the pages lead to a file and a heading"
finish

#!/usr/bin/env bash
# The guide's programs compile against an installed moert through pkg-config, in both linkages, and print the same digits on 1 and 2
# ranks, those that the guide shows. The README's excerpt is part of one. The public headers are C++ too. Links between the pages of
# the documentation lead to a file and a heading.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
build=$(realpath --relative-to=. "${TEST_BUILD:-build}")
check "make install" make --no-print-directory BUILD="$build" PREFIX="$folder/prefix" install
export PKG_CONFIG_PATH=$folder/prefix/lib/pkgconfig

awk -v folder="$folder" '/^```c$/ {file = folder "/" ++n ".c"; next} /^```$/ {file = ""} file {print >file}' docs/guide.md
[ "$(find "$folder" -maxdepth 1 -name '[0-9].c' -size +1k | wc -l)" -eq 2 ]
verdict $? "the guide holds two programs"
sed -n '/^```c$/,/^```$/{/^```/!p}' README.md >"$folder/excerpt"
[ -s "$folder/excerpt" ] && ! grep -vxFf "$folder/1.c" "$folder/excerpt" >"$log"
verdict $? "the README's excerpt is part of the guide's first program"
flags="$(pkg-config --cflags --libs moert) -Wl,-rpath,$folder/prefix/lib"

for program in 1 2; do
    own=$folder/$program
    # shellcheck disable=SC2086
    check "program $program links with the shared library" gcc -std=c11 "$own.c" -o "$own.shared" $flags
    # shellcheck disable=SC2086
    gcc -std=c11 "$own.c" -o "$own.static" -I"$folder/prefix/include" "$folder/prefix/lib/libmoert.a" \
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
[ -s "$folder/2.out1" ] && grep -qxF "$(cat "$folder/2.out1")" docs/guide.md
verdict $? "the quantized product is the guide's"

if command -v g++ >/dev/null; then
    printf '#include <moert/moert.h>\nmoert_quantize op = MOERT_QUANTIZE_INIT;\n' >"$folder/header.cc"
    # shellcheck disable=SC2046
    check "the public headers are C++, too" g++ -std=c++20 -Wall -Werror -fsyntax-only "$folder/header.cc" $(pkg-config --cflags moert)
fi
nm -D --defined-only "$folder/prefix/lib/libmoert.so" | awk '$2 == "T" || $2 == "B" || $2 == "D" {print $3}' | grep -v '^moert_' >"$folder/foreign"
check "the library exports moert_ names only" [ ! -s "$folder/foreign" ]

# GitHub's name of a heading: lower case, without punctuation, hyphens for spaces
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

#!/usr/bin/env bash
# The README's program compiles against an installed moert through pkg-config, in both linkages, and gives the same
# digits on 1 and 2 ranks.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
build=$(realpath --relative-to=. "${TEST_BUILD:-build}")
make --no-print-directory BUILD="$build" PREFIX="$folder/prefix" install >"$log" 2>&1
verdict $? "make install"
export PKG_CONFIG_PATH=$folder/prefix/lib/pkgconfig

sed -n '/^```c$/,/^```$/p' README.md | sed '1d;$d' >"$folder/main.c"
[ "$(grep -c . "$folder/main.c")" -gt 20 ]
verdict $? "the README holds a program"
flags="$(pkg-config --cflags --libs moert) -Wl,-rpath,$folder/prefix/lib"
# shellcheck disable=SC2086
gcc -std=c11 "$folder/main.c" -o "$folder/shared" $flags 2>"$log"
verdict $? "it links with the shared library"
# shellcheck disable=SC2086
gcc -std=c11 "$folder/main.c" -o "$folder/static" -I"$folder/prefix/include" "$folder/prefix/lib/libmoert.a" \
    $(pkg-config --cflags --libs ompi-c OpenCL hwloc jansson libxxhash) -lm -ldl -pthread 2>>"$log"
verdict $? "it links with the static library"

for ranks in 1 2; do
    "${MOERT_MPIRUN[@]}" -n $ranks "$folder/shared" >"$folder/out$ranks" 2>"$log"
    verdict $? "it runs on $ranks ranks"
done
"${MOERT_MPIRUN[@]}" -n 1 "$folder/static" >"$folder/static.out" 2>"$log"
cmp -s "$folder/out1" "$folder/static.out"
verdict $? "both linkages give the same digits"
[ "$(sed 's/.*= //' "$folder/out1")" = "$(sort "$folder/out2" | head -n 1 | sed 's/.*= //')" ]
verdict $? "1 and 2 ranks give the same digits"
nm -D --defined-only "$folder/prefix/lib/libmoert.so" | awk '$2 == "T" || $2 == "B" || $2 == "D" {print $3}' | grep -v '^moert_' >"$folder/foreign"
[ ! -s "$folder/foreign" ]
verdict $? "the library exports moert_ names only"
finish

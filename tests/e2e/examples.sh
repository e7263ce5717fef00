#!/usr/bin/env bash
# run: check
# C11 and C++17 programs build against an installation by pkg-config without warnings; the examples print the same digits with the
# static and the shared library and on any number of ranks; the loss of tiny_train falls; the library exports what the headers
# declare.
. "$(dirname "$0")/../support/e2e.sh"
export MAKEFLAGS= OMPI_MCA_ess_singleton_isolated=1 # MAKEFLAGS: drops the flags of a make that runs the tests
prefix=$tmp/moert
check "make install" make --no-print-directory BUILD="$(realpath --relative-to=. "${TEST_BUILD:-build}")" PREFIX="$prefix" install
export PKG_CONFIG_PATH=$prefix/lib/pkgconfig
cp -r "$prefix/share/moert/examples" "$tmp" && cd "$tmp/examples" || exit 1
check "the examples compile by their Makefile" make --no-print-directory -j2

example() { # NAME: compares the example's digits between the static and the shared library, and between 1 and 2 ranks
    local example=$1 ranks
    # shellcheck disable=SC2046
    check "$example links with the static library" gcc -std=c11 $example.c -o $example.static -I"$prefix/include" "$prefix/lib/libmoert.a" \
        $(pkg-config --cflags --libs moert hwloc jansson libxxhash | sed 's/-lmoert//') -lm -ldl -pthread
    for ranks in 1 2; do
        "${MOERT_MPIRUN[@]}" -n $ranks ./$example >$example.out$ranks 2>"$log"
        verdict $? "$example runs on $ranks ranks"
    done
    "${MOERT_MPIRUN[@]}" -n 1 ./$example.static >$example.static.out 2>"$log"
    check "both linkages of $example give the same digits" cmp -s $example.out1 $example.static.out
    [ "$(sed 's/.*= //' $example.out1)" = "$(sort $example.out2 | head -n 1 | sed 's/.*= //')" ]
    verdict $? "$example gives the same digits on 1 and 2 ranks"
}
for name in layer quantized experts training; do part example $name; done
join
for ranks in 3 4; do # experts compares its bits with the layer's
    for engine in window node staged; do
        MOERT_NODE_RANKS=$([ $engine = node ] && echo 1 || echo 0) MOERT_EXCHANGE=$engine "${MOERT_MPIRUN[@]}" -n $ranks ./experts >experts.out 2>"$log" &&
            [ "$(sed 's/.*= //' experts.out | sort -u)" = "$(sed 's/.*= //' experts.out1)" ] && grep -q ", $engine exchange" experts.out
        verdict $? "experts gives the same digits on $ranks ranks by the $engine exchange"
    done
done
for ranks in 1 2 3; do # 3 ranks divide 10 sequences unevenly
    "${MOERT_MPIRUN[@]}" -n $ranks ./tiny_train "$prefix/share/doc/moert/LICENSE" >tiny.out$ranks 2>"$log"
    verdict $? "tiny_train runs on $ranks ranks"
done
cmp tiny.out1 tiny.out2 >"$log" && cmp tiny.out1 tiny.out3 >>"$log"
verdict $? "tiny_train prints the same losses and checksums of weights on 1, 2 and 3 ranks"
awk 'NR == 1 { first = $4 } END { print first, $4; exit !(NR == 11 && $4 < first / 3) }' tiny.out1 >"$log"
verdict $? "its loss falls below a third in 100 steps"
grep -qxF "$(cat quantized.out1)" "$prefix/share/doc/moert/guide.md"
verdict $? "quantized prints the line that the guide shows"

if command -v g++ >/dev/null; then
    { # a program that uses every initialiser
        printf '#include <moert/moert.h>\nint main() {\n'
        sed -nE 's/^#define MOERT_([A-Z_]+)_INIT\b.*/\1/p' "$prefix"/include/moert/*.h | sort -u | while read -r name; do
            type=moert_${name,,}
            printf '    %s %s = MOERT_%s_INIT;\n    if (%s.size != sizeof(%s)) return 1;\n' "$type" "x_$type" "$name" "x_$type" "$type"
        done
        printf '    return moert_version() != MOERT_VERSION_NUMBER;\n}\n'
    } >program.cc
    [ "$(grep -c _INIT program.cc)" -gt 10 ]
    verdict $? "the headers have $(grep -c _INIT program.cc) initialisers"
    # shellcheck disable=SC2046
    check "a C++17 program compiles without warnings and links" g++ -std=c++17 -Wall -Wextra -Werror program.cc -o program $(pkg-config --cflags --libs moert) \
        -Wl,-rpath,"$prefix/lib"
    check "the C++17 program runs" ./program
    for ranks in 1 2; do
        "${MOERT_MPIRUN[@]}" -n $ranks ./modern >modern.out$ranks 2>"$log"
        verdict $? "modern, in C++17, runs on $ranks ranks"
    done
    [ "$(sed 's/.*= //' modern.out1)" = "$(sed 's/.*= //' modern.out2 | sort -u)" ]
    verdict $? "modern gives the same digits on 1 and 2 ranks"
fi
nm -D --defined-only "$prefix/lib/libmoert.so" | awk '$2 == "T" || $2 == "B" || $2 == "D" {print $3}' | sort -u >exported
[ "$(wc -l <exported)" -gt 50 ] && ! grep -v '@@MOERT_0$' exported
verdict $? "every exported function has the library's version"
sed -i 's/@@MOERT_0$//' exported
cat "$prefix"/include/moert/*.h | tr '\n' ' ' | grep -oE 'MOERT_API [^;(]*\(' | grep -oE 'moert_[a-z0-9_]+\($' | tr -d '(' | sort -u >declared
check "the library exports what the headers declare, and nothing else" diff declared exported
finish

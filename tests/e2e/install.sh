#!/usr/bin/env bash
# run: all alone
# The archive of `make dist` contains the files of the commit. The script installs moert from the archive and deletes the sources.
# Then, from any directory, the installed programs train and report, the launch scripts check hosts and start ranks, man pages and
# shell completion list the options, man pages describe each function of the library, the examples compile, and `make uninstall`
# leaves nothing.
. "$(dirname "$0")/../support/e2e.sh"
export MAKEFLAGS= # drops the flags of a make that runs the tests
build=$(realpath "${TEST_BUILD:-build}") prefix=$tmp/opt/moert source=$tmp/source

compiled() { # CFLAGS: whether make compiles an object again
    make --no-print-directory BUILD="$tmp/flags" CFLAGS="$1" "$tmp/flags/src/base/text.o" | grep -q ' CC '
}
compiled -O0 && ! compiled -O0 && compiled -O1
verdict $? "make compiles again if the flags change, and only then"

mkdir "$source" # gets sources that are older than the objects of its build directory
if git rev-parse HEAD >/dev/null 2>&1; then
    check "make dist" make --no-print-directory BUILD="$build" dist
    tar xzf "$build"/moert-*.tar.gz -C "$source" --strip-components 1
    diff <(git ls-tree -r --name-only HEAD | sort) <(cd "$source" && find . -type f -printf '%P\n' | sort) >"$log" &&
        [ "$(cat "$source/.commit")" = "$(git rev-parse --short HEAD)" ]
    verdict $? "the archive holds the commit and its name"
fi
cp -r Makefile docs include kernels launch src tests bench README.md LICENSE "$source"
find "$source" -exec touch -d 2000-01-01 {} +
mkdir "$source/build"
cp -a "$build/bin" "$build/lib" "$build/src" "$build/bench" "$build"/{embed,kernels.c,kernels.o,page.c,page.o,packages,flags,moert.map,commit.h} "$source/build"
check "make install" make --no-print-directory -C "$source" PREFIX="$prefix" install
check "make install with DESTDIR" make --no-print-directory -C "$source" PREFIX=/usr DESTDIR="$tmp/root" install
[ "$(cd "$tmp/root/usr" && find . | sort)" = "$(cd "$prefix" && find . | sort)" ] && [ "$(ls "$tmp/root")" = usr ]
verdict $? "DESTDIR has the same files below PREFIX, and no others"
check "make uninstall" make --no-print-directory -C "$source" PREFIX=/usr DESTDIR="$tmp/root" uninstall
[ -z "$(find "$tmp/root" ! -type d)" ]
verdict $? "no file is left after it"
rm -rf "$source"
grep -rIlF "$source" "$prefix" >"$log"
[ ! -s "$log" ]
verdict $? "no installed file names the directory of the sources"

cd "$tmp" || exit 1
export PATH=$prefix/bin:$PATH PKG_CONFIG_PATH=$prefix/lib/pkgconfig
small=(--data "$prefix/share/doc/moert" --hidden 32 --intermediate 32 --heads 2 --layers 1 --experts 4 --batch 4 --length 32 --log-every 0)
logged timeout -k 5 120 moert-launch train --np 2 -- "${small[@]}" --steps 4 --out run --profile && has_lines "$log" '^moert-train: 2 ranks'
verdict $? "moert-launch train"
check "moert-report" alone moert-report run
[ -s run/report.html ]
verdict $? "the report is there"
logged timeout -k 5 120 moert-launch preflight --np 2 --seconds 0.3 --slow 0.1 && has_lines "$log" '^preflight: 2 ranks on 1 node: ready'
verdict $? "moert-launch preflight"
logged timeout -k 5 120 moert-launch scaling --ranks 1 --what layer --tokens 64 --sizes "--hidden 64 --experts 4 --topk 2" --repeat 1 --out scaling &&
    [ -s scaling/weak.svg ]
verdict $? "moert-launch scaling"
if moert-launch virtual-cluster 1 --head -- true 2>"$log"; then
    finalized logged timeout -k 5 120 moert-launch virtual-cluster 2 -- moert-train "${small[@]}" --steps 2 && has_lines "$log" '^moert-train: 2 ranks.*exchange (node|staged)'
    verdict $? "moert-launch virtual-cluster"
else
    verdict 0 "virtual clusters cannot be tested here # SKIP $(tail -n 1 "$log")"
fi
refused 2 "^moert-launch: 'trian' is no command" "moert-launch refuses an unknown command" logged moert-launch trian
[ -e "$(moert-launch directory)/slurm/train.sbatch" ]
verdict $? "moert-launch directory has the scripts for Slurm"

# ---- man pages, completion ----

helps() { # prints a line PAGE OPTION for each option of each program
    local program
    for program in train generate layer op info report tune preflight; do moert-$program --help | sed -nE "s/^  (--[a-z0-9-]+).*/moert-$program \1/p"; done
    for program in train stop preflight scaling virtual-cluster tokenize detokenize generate evaluate; do
        moert-launch $program --help | sed -nE "s/^  (--[a-z0-9-]+).*/moert-launch-$program \1/p"
    done
}
export OMPI_MCA_ess_singleton_isolated=1
helps >options
while read -r page option; do
    grep -qE "^\.B ${option//-/\\\\-}( |\[|\$)" "$prefix/share/man/man1/$page.1" || echo "$page: no $option"
done <options >"$log"
[ ! -s "$log" ] && [ "$(wc -l <options)" -gt 100 ]
verdict $? "the man pages have all options"
if command -v man >/dev/null; then
    man -l "$prefix/share/man/man1/moert-train.1" 2>"$log" | grep -qE '^ +--steps N' && [ ! -s "$log" ]
    verdict $? "man shows them"
    cat "$prefix"/include/moert/*.h | tr '\n' ' ' | grep -oE 'MOERT_API [^;(]*\(' | grep -oE 'moert_[a-z0-9_]+\($' | tr -d '(' >functions
    while read -r function; do # man finds each function in a page of its name, or in one that this page refers to
        MANWIDTH=200 man -M "$prefix/share/man" 3 "$function" 2>&1 | grep -qE "^ .*\b$function\(.*[,;]$" || echo "no page: $function"
    done <functions >"$log"
    [ ! -s "$log" ] && [ "$(wc -l <functions)" -gt 50 ]
    verdict $? "man shows the prototype of each function of the library"
    for page in $(grep -L '^\.so ' "$prefix"/share/man/man[13]/*); do
        LC_ALL=C man --warnings=w -l "$page" 2>&1 >page.txt
        ! command -v mandoc >mandoc || mandoc -T lint -W error "$page"
    done >"$log"
    [ ! -s "$log" ]
    verdict $? "man$([ ! -s mandoc ] || echo " and mandoc") find no fault in the pages"
else
    verdict 0 "man pages cannot be shown # SKIP no man"
fi

completed() { # WORDS WORD...: true if completing the last WORD gives WORDS
    COMP_WORDS=("${@:2}") COMP_CWORD=$(($# - 2)) COMPREPLY=()
    moert_complete "$2"
    [ "${COMPREPLY[*]}" = "$1" ] || { echo "${*:2}: ${COMPREPLY[*]}, not $1" >>"$log"; return 1; }
}
: >"$log"
. "$prefix/share/bash-completion/completions/moert-train"
completed '--lr --lr-schedule --lr-floor --lr-decay' moert-train --lr && completed 'mxfp8' moert-train --steps 3 --precision mx &&
    completed 'swizzle' moert-op sw && completed '--lines' moert-op unswizzle --li &&
    completed 'preflight' moert-launch pre && completed '--np' moert-launch train --n && completed '' moert-train --data /etc/pass
verdict $? "options, their words and commands are completed"

cp -r "$prefix/share/moert/examples" . && cd examples || exit 1
check "the installed examples compile by their Makefile" make --no-print-directory layer experts
check "and run" "${MOERT_MPIRUN[@]}" -n 2 ./layer
finish

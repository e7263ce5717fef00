#!/usr/bin/env bash
# run: check
# The C and Python excerpts in the README, the guide and the page of the library are parts of the examples. Links between pages of
# the documentation lead to existing files and headings. docs/design.md has a section for each source directory. The table of
# promises names existing tests, with their tiers.
. "$(dirname "$0")/../support/e2e.sh"

for page in README.md docs/guide.md docs/library.md; do
    sed -n '/^```c$/,/^```$/{/^```/!p}' "$page" >"$tmp/excerpt"
    [ -s "$tmp/excerpt" ] && ! cat tests/examples/*.c | grep -vxFf - "$tmp/excerpt" >"$log"
    verdict $? "the excerpts of $page are parts of the examples"
done

for page in README.md docs/guide.md; do
    sed -n '/^```python$/,/^```$/{/^```/!p}' "$page" | sed 's/^ *//' >"$tmp/excerpt"
    [ -s "$tmp/excerpt" ] && ! sed 's/^ *//; s/  # .*//' tests/examples/*.py | grep -vxFf - "$tmp/excerpt" >"$log"
    verdict $? "the excerpts of Python in $page are parts of the examples"
done

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

for directory in src/*/ src/exchange/*/ src/gemm/*/ kernels/*/; do
    grep -qE "^##.* ${directory%/}(:|\$)|\`${directory%/}\`" docs/design.md || echo "no section of ${directory%/}"
done >"$log"
[ ! -s "$log" ]
verdict $? "the design has a section for each directory"

# The last cell of a promise names the tiers of its tests: tiers of tests/run, rows of tests/night, or targets of make check-all
{
    tests/run --list --tier check --tier all --tier night
    printf 'all %s\n' lint fuzz
    printf 'night %s\n' check-python check-inject check-kernels soak
} | awk '
    FNR == NR { has[$2, $1]; known[$2]; next }
    /^\| promise / { table = 1; next }
    !/^\|/ { table = 0 }
    !table || /^\|--/ { next }
    {
        cells = split($0, cell, / \| | \|$/)
        split("", in_tier)
        quotes = split(cell[2], word, "`")
        for (i = 2; i <= quotes; i += 2) {
            sub(/^make /, "", word[i])
            sub(/ .*/, "", word[i])
            found = 0
            for (name in known)
                if (name == word[i] || (sub(/\*$/, "*", word[i]) && index(name, substr(word[i], 1, length(word[i]) - 1)) == 1)) {
                    found = 1
                    for (t = 1; t <= 3; t++) if ((name, tier[t]) in has) in_tier[t]
                }
            if (!found && word[i] !~ "/") print "no test " word[i]
        }
        tiers = ""
        for (t = 1; t <= 3; t++) if (t in in_tier) tiers = tiers (tiers == "" ? "" : ", ") tier[t]
        sub(/:.*/, "", cell[3])
        if (cells < 4 || cell[3] != tiers) print substr($0, 1, 80) ": its tests run in: " tiers
    }
    BEGIN { split("check all night", tier, " ") }' - docs/testing.md >"$log"
[ ! -s "$log" ]
verdict $? "each promise names its tests and their tiers"
finish

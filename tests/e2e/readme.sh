#!/usr/bin/env bash
# run: check all
# The excerpts of C and Python in the README, the guide and the page of the library are parts of the examples. Links between the pages
# of the documentation lead to an existing file and heading.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh

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
finish

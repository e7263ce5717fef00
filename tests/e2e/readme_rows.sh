#!/usr/bin/env bash
# run: all alone
# Runs the commands of the table "Use it" in the README unchanged, one after the other: DIRECTORY, FILE and MODEL are the names of
# a directory of text, a file of hosts and a model. Commands that need a network, another compiler or Python packages are left
# out.
set -u
cd "$(dirname "$0")/../.." || exit 1
. tests/support/e2e.sh
root=$PWD
mkdir "$tmp/here" "$tmp/here/DIRECTORY"
cd "$tmp/here" || exit 1
for each in "$root"/*; do ln -s "$each" .; done
cp "$root/LICENSE" "$root/README.md" DIRECTORY
echo "$(hostname) slots=2" >FILE
echo '{"question": "The", "choices": ["license", "qqqq"], "answer": 0}' >questions.jsonl
cp -r "$root/tests/golden/model/mixtral-tiny" MODEL
for ending in bin idx; do cp "$root/tests/golden/data/u8.$ending" "corpus.$ending"; done # what launch/tokenize makes

# all commands in the second cells of the table
sed -n '/^## Use it/,/^A layer in/p' README.md | awk -F'|' '/^\|/ { print $3 }' | grep -oE '`[^`]+`' | tr -d '`' | grep -E '^(launch|build)/' >rows
[ "$(wc -l <rows)" -ge 9 ]
verdict $? "the table has commands"
while IFS= read -r command <&3; do
    case $command in
    launch/tokenize*) verdict 0 "$command # SKIP tokenize.sh runs it" ;;
    launch/generate* | launch/evaluate*)
        if command -v "${PYTHON:-python3}" >/dev/null; then
            logged bash -c "$command"
            verdict $? "$command"
        else
            verdict 0 "$command # SKIP there is no python3"
        fi
        ;;
    launch/virtual-cluster*) verdict 0 "$command # SKIP cluster.sh runs it" ;;
    build/bin/moert-tune) # moert-tune runs until it is stopped
        logged timeout -s INT 20 bash -c "MOERT_CACHE_DIR=$tmp/cache $command --busy"
        [ $? -eq 124 ]
        verdict $? "$command"
        ;;
    launch/quickstart*)
        logged bash -c "$command" && has_lines "$log" '^page    build/quickstart/report\.html$' && grep -q '"profile":{"steps":298,' build/quickstart/report.html
        verdict $? "$command, with its page"
        ;;
    launch/stop*) # stops a training like that of the first row
        launch/train --np 2 -- --data DIRECTORY --out runs/first --overwrite >"$log" 2>&1 &
        for ((i = 0; i < 600; i++)); do grep -q '^step  *0 ' "$log" && break || sleep 0.1; done
        bash -c "$command" >>"$log" 2>&1 && wait $! && has_lines "$log" '^stopped by a signal'
        verdict $? "$command"
        ;;
    launch/preflight*) # other programs may make a rank slow
        logged bash -c "$command" || grep -q ': slow: ' "$log"
        verdict $? "$command"
        ;;
    *)
        logged bash -c "$command"
        verdict $? "$command"
        ;;
    esac
done 3<rows
[ -d runs/first/model ] && [ -d runs/further/model ] && [ -d runs/hosts/model ]
verdict $? "each training has left its own model"
logged bash -c "$(head -n 1 rows) --resume auto" && has_lines "$log" '^resumed from runs/first/checkpoints/step-00000100 at step 100'
verdict $? "the first one goes on with --resume auto"
finish

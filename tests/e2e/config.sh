#!/usr/bin/env bash
# run: check
# Options of a file (--config) and of a run's record: a run from the record of another run has its bytes, and a resumed run needs no
# option again, on more ranks.
. "$(dirname "$0")/../support/e2e.sh"
program=$bin/moert-train
cat >"$tmp/options.json" <<'END'
{"data": ["LICENSE"], "hidden": 32, "intermediate": 96, "heads": 2, "length": 64, "batch": 4, "lr": 0.0031, "steps": 4, "log-every": 0, "eval-every": 6}
END
given=(--data LICENSE --eval-every 6 --hidden 32 --intermediate 96 --heads 2 --length 64 --batch 4 --lr 0.0031 --log-every 0)

alone "$program" "${given[@]}" --steps 4 --out "$tmp/typed"
verdict $? "a run whose options are typed"
alone "$program" --config "$tmp/options.json" --out "$tmp/file" &&
    has_lines "$log" "^options of $tmp/options.json: --data=LICENSE --hidden=32 .* --steps=4" &&
    same_run "$tmp/typed" "$tmp/file" && diff -r "$tmp/typed/model" "$tmp/file/model" >>"$log"
verdict $? "the same options in a file give the same bytes"
alone "$program" --config "$tmp/typed/run.json" --out "$tmp/record" --steps 2 && alone "$program" --out "$tmp/record" --resume must --steps 4 &&
    ranks 2 "$program" --config "$tmp/record/run.json" --out "$tmp/again" &&
    same_run "$tmp/typed" "$tmp/again" && diff -r "$tmp/typed/model" "$tmp/again/model" >>"$log"
verdict $? "the record of a run gives its bytes on 2 ranks; command line over record over defaults"
ranks 2 "$program" --out "$tmp/file" --resume auto --steps 6 &&
    has_lines "$log" "^options of $tmp/file/run.json: .*--data=LICENSE" '^resumed from .* at step 4' &&
    alone "$program" "${given[@]}" --out "$tmp/typed" --resume auto --steps 6 &&
    same_run "$tmp/typed" "$tmp/file" && diff -r "$tmp/typed/model" "$tmp/file/model" >>"$log"
verdict $? "a resumed run takes its options from its record, on more ranks"
alone "$program" --config "$tmp/typed/run.json" --model "$tmp/typed/model" --out "$tmp/further" --steps 2 &&
    alone "$program" --out "$tmp/further" --resume auto --steps 3
verdict $? "a --model is trained further by the record of the run that made it, without its sizes"

alone "$program" --data LICENSE --model "$tmp/typed/model" --length 64 --eval-every 1 --steps 0 &&
    has_lines "$log" "^held-out loss $(sed -nE 's/.*"heldout_loss": ([0-9]\.[0-9]{3}).*/\1/p' "$tmp/typed/metrics.jsonl" | tail -n 1)"
verdict $? "--steps 0 --eval-every 1 evaluates a model"
alone "$program" --config "$tmp/options.json" --steps 9 --show-config && cp "$log" "$tmp/shown.json" &&
    alone "$program" --config "$tmp/shown.json" --show-config && has_lines "$log" '"version"' &&
    grep -A 2 '"steps"' "$log" | tr -d ' \n' | grep -q '"value":9,"source":"file"'
verdict $? "--show-config shows what --config reads"
sed 's/"steps"/"stesp"/' "$tmp/options.json" >"$tmp/wrong-options.json"
refused 2 'wrong-options.json: unknown option --stesp; did you mean --steps\?' "an unknown option of a file" \
    alone "$program" --config "$tmp/wrong-options.json"
refused 2 "give one \($tmp/typed/run.json gives options, too\)" "an option that contradicts one of the file" \
    alone "$program" --config "$tmp/typed/run.json" --out "$tmp/other" --split 9,1 --held-out 0.1
ranks 2 "$program" "${given[@]}" --ep 2 --steps 2 --out "$tmp/groups" && ranks 3 "$program" --out "$tmp/groups" --resume auto --steps 3 &&
    has_lines "$log" '--ep 2 of the file of options does not divide 3 ranks; all ranks share one set of experts'
verdict $? "an --ep of the record that does not divide the ranks is left out"
refused 2 "3 ranks cannot form groups of 2.*\($tmp/groups/run.json gives options, too\)" "an --ep that is given must divide the ranks" \
    ranks 3 "$program" --out "$tmp/groups" --resume auto --ep 2
refused 1 "cannot open|No such file" "a file that is not there" alone "$program" --config "$tmp/none.json"
version() {
    local each
    for each in "$bin"/moert-{train,generate,info,layer,op,tune,preflight,report}; do
        alone "$each" --version && grep -Eq "^${each##*/} [0-9.]+, commit [0-9a-f]{7}" "$log" || { echo "$each" >>"$log"; return 1; }
    done
}
check "every program shows its version" version
finish

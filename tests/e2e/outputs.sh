#!/usr/bin/env bash
# run: all
# Output that cannot be written ends every program with status 1 and one message that says why. No partly written file is left,
# and a run removes the files that an interrupted run has left.
. "$(dirname "$0")/../support/e2e.sh"
work=$tmp
disk=$work/disk
leave() {
    wait
    mountpoint -q "$disk" && umount "$disk"
    rm -rf "$work"
}
trap leave EXIT
layer=tests/golden/layer/mixtral-a
train=("$bin/moert-train" --data LICENSE --hidden 32 --intermediate 32 --heads 2 --layers 1 --batch 4 --length 32 --steps 2)
run=$work/run
check "a run with room" alone "${train[@]}" --save-every 1 --out "$run"

# ---- stdout ----

# with_stdout FILE COMMAND...: runs COMMAND like `alone`, but writes stdout to FILE and only stderr to $log
with_stdout() {
    OMPI_MCA_ess_singleton_isolated=1 OMPI_MCA_orte_tmpdir_base=$tmp OMPI_MCA_pml=ob1 timeout -k 5 120 "${@:2}" 2>"$log" >"$1"
}

# lost TITLE COMMAND...: prints the verdict on COMMAND with /dev/full as stdout
lost() {
    refused 1 '^moert-[a-z]+: stdout: the output cannot be written: .*is the disk full\?' "$1, stdout is full" \
        with_stdout /dev/full "${@:2}"
}
for program in info layer op preflight report train tune; do
    part lost "moert-$program --help" "$bin/moert-$program" --help
done
part lost "moert-info" "$bin/moert-info"
part lost "moert-info --json" "$bin/moert-info" --json
part lost "moert-info --check" "$bin/moert-info" --check "$run"
part lost "moert-report" "$bin/moert-report" "$run" --out "$work/page.html"
part lost "moert-layer" "$bin/moert-layer" --model $layer --input $layer/input.safetensors --output "$work/y.safetensors"
part lost "moert-preflight" "$bin/moert-preflight" --seconds 0.1
part lost "moert-train" "${train[@]}" --out "$work/silent"
join
: >"$log"
diff -r "$run/model" "$work/silent/model" >"$log" 2>&1
verdict $? "a run whose console is full still ends with its model"

# ---- files on a full disk ----

# unwritten PATTERN COMMAND...: prints the verdict on COMMAND, which writes to the full disk and must fail with a message that
# matches PATTERN
unwritten() {
    local pattern=$1 status ok=0
    shift
    with_stdout /dev/null "$@"
    status=$?
    [ $status -eq 1 ] && [ "$(grep -Ec '^(moert|bench_)' "$log")" -eq 1 ] && grep -Eq "^(moert|bench_).*$pattern.*No space left" "$log" || ok=1
    find "$disk" -mindepth 1 ! -name full ! -name '*.jsonl' >"$work/left"
    [ ! -s "$work/left" ] || ok=1
    cat "$work/left" >>"$log"
    find "$disk" -mindepth 1 ! -name full -delete
    verdict $ok "a full disk: ${1##*/}, $(basename "${@: -1}")"
}
mkdir "$disk"
if mount -t tmpfs -o size=64k moert-test "$disk" 2>/dev/null; then
    head -c 100000 /dev/zero >"$disk/full" 2>/dev/null
    unwritten 'y\.safetensors' "$bin/moert-layer" --model $layer --input $layer/input.safetensors --output "$disk/y.safetensors"
    unwritten 'q\.safetensors' "$bin/moert-op" quantize --input tests/golden/quant/mxfp8-e4m3-rceil-edge-40x96.safetensors \
        --output "$disk/q.safetensors"
    unwritten 'logits' "${train[@]}" --save-logits "$disk/logits.safetensors"
    unwritten 'gradients' "${train[@]}" --save-gradients "$disk/gradients.safetensors"
    unwritten 'trace\.json' "${train[@]}" --trace "$disk/trace.json"
    unwritten 'm\.jsonl' "${train[@]}" --metrics "$disk/m.jsonl"
    unwritten 'run/\.lock' "${train[@]}" --out "$disk/run"
    unwritten 'page\.html' "$bin/moert-report" "$run" --out "$disk/page.html"
    unwritten 'p\.json' "$bin/moert-preflight" --seconds 0.1 --json "$disk/p.json"
    unwritten 'b\.json' "$bin/bench_model" --machine bench/machines/h200.json --model qwen3-30b --tokens 16384 --type bf16 --json "$disk/b.json"
    # on a disk with room for one and a half checkpoints, the first checkpoint is whole and can be resumed
    mount -o remount,size=$(($(du -sb "$run/checkpoints/step-00000001" | cut -f 1) * 3 / 2)) "$disk"
    for count in 1 2; do
        ends 1 'step-00000002\.tmp/.*No space left' "a full disk, $count ranks: a save" \
            ranks $count "${train[@]}" --save-every 1 --out "$disk/run"
        [ "$(ls "$disk/run/checkpoints")" = step-00000001 ] &&
            ranks $count "${train[@]}" --save-every 1 --resume "$disk/run/checkpoints/step-00000001" --out "$work/more-$count" &&
            diff -r "$run/checkpoints/step-00000001" "$disk/run/checkpoints/step-00000001" >>"$log" &&
            diff -r "$run/checkpoints/step-00000002" "$work/more-$count/checkpoints/step-00000002" >>"$log"
        verdict $? "a full disk, $count ranks: the earlier checkpoint is whole and can be resumed"
        rm -rf "$disk/run"
    done
else
    verdict 0 "files on a full disk # SKIP no permission to mount a tmpfs"
fi
refused 1 'full: cannot be written: No space left' "a report to a full device" with_stdout /dev/null "$bin/moert-preflight" --seconds 0.1 --json /dev/full
refused 1 '/dev/full: [0-9]* bytes cannot be appended: No space left' "metrics to a full device" with_stdout /dev/null "${train[@]}" --metrics /dev/full

# ---- ulimit -f ----

limited() { (ulimit -f "$1" && shift && with_stdout /dev/null "$@"); } # KIB COMMAND...
refused 1 'for PoCL|File too large' "no room for PoCL's files below ulimit -f" limited 100 "${train[@]}" --out "$work/limited"
refused 1 'model\.safetensors.*File too large' "a model above ulimit -f" \
    limited 20000 "${train[@]}" --hidden 256 --intermediate 1024 --out "$work/limited"
refused 1 'page\.html.*File too large' "a report above ulimit -f" limited 1 "$bin/moert-report" "$run" --out "$work/page.html"

# ---- what an interrupted run leaves ----

cp -r "$run" "$work/again"
mkdir "$work/again/model.tmp" "$work/again/model.old" "$work/again/checkpoints/step-00000009.tmp"
echo '{"step": 0' >"$work/again/metrics.jsonl.tmp"
alone "${train[@]}" --steps 3 --save-every 1 --out "$work/again" --resume auto && [ -z "$(find "$work/again" -name '*.tmp' -o -name '*.old' | tee -a "$log")" ]
verdict $? "a run removes what an interrupted run has left"
mkdir "$work/again/checkpoints/step-00000009.tmp"
alone "${train[@]}" --steps 4 --no-save-last --out "$work/again" --resume auto && [ ! -e "$work/again/checkpoints/step-00000009.tmp" ]
verdict $? "so does a run that saves nothing"
finish

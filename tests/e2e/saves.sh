#!/usr/bin/env bash
# run: check all night waits
# Checkpoints that are written to another directory while training continues have the bytes of checkpoints for which training
# waits. During a save, the disk may be full, read-only or slow, signals may arrive, and the job may end: the run continues or
# ends in order, and no partly written checkpoint is ever resumed.
# SAVES_KILLS=N sets the number of SIGKILLs at random moments; SAVES_SEED=N changes the moments.
. "$(dirname "$0")/../support/e2e.sh"
. tests/support/job.sh
kills=${SAVES_KILLS:-$([ "$TEST_TIER" = night ] && echo 40 || echo 4)}
echo "# SAVES_SEED=${SAVES_SEED:=1}"
TEST_JOBS=4 # slow saves wait
export MOERT_LOG=info
program=$bin/moert-train steps=60 last=step-00000060
model=(--data LICENSE --hidden 32 --intermediate 96 --heads 2 --length 64 --batch 8 --log-every 0 --steps $steps) # a checkpoint has 2 MB
unmount() {
    umount "$work"/*/run/checkpoints 2>/dev/null
    leave
}
trap unmount EXIT

train() { # NAME RANKS OPTION...: starts a run in the background
    start "$1" "$2" "$program" "${model[@]}" --out "$work/$1/run" "${@:3}"
}

# Checks that the run's model and the last checkpoint in DIRECTORY have the bytes of an undisturbed run
same_bytes() { # DIRECTORY
    diff -r "$work/whole/run/checkpoints/$last" "$1/$last" >>"$log" && diff -r "$work/whole/run/model" "$dir/run/model" >>"$log" &&
        [ "$(wc -l <"$dir/run/metrics.jsonl")" -eq $steps ]
}
nothing_half() { [ -z "$(find "$1" -name '*.tmp' -o -name '*.old' | tee -a "$log")" ]; } # DIRECTORY
warnings() { grep -cE "^moert.* warning: the checkpoint of step [0-9]+ $1" "$log"; }    # PATTERN: prints the number of warnings that match PATTERN
saved() { ls "$dir/run/checkpoints" | grep -x 'step-[0-9]*'; }
steps_in() { ls "$1" | paste -sd ' '; } # DIRECTORY
runs() { kill -0 "$launcher" 2>/dev/null && sleep 0.1; }

train whole 1 --save-every 10
await
verdict $status "a run whose steps wait for their checkpoints"

# ---- the same bytes, with --save-dir ----

beside() {
    train beside 2 --save-every 5 --keep-last 2 --keep-every 20 --save-beside wait --save-dir "$work/beside/saves"
    await
    [ "$status" -eq 0 ] && same_bytes "$dir/saves" && [ ! -e "$dir/run/checkpoints" ] && nothing_half "$dir" &&
        [ "$(steps_in "$dir/saves")" = "step-00000020 step-00000040 step-00000055 step-00000060" ] &&
        diff -r "$work/whole/run/checkpoints/step-00000040" "$dir/saves/step-00000040" >>"$log" &&
        [ "$(grep -c '"save_held_s": [0-9]' "$dir/run/metrics.jsonl")" -gt 5 ] && [ "$(grep -c '"save_s": [0-9]' "$dir/run/metrics.jsonl")" -gt 5 ]
    verdict $? "2 ranks write checkpoints beside training, to the same bytes; --keep-every keeps some"
    alone "$bin/moert-info" --check "$dir/saves"
    [ $? -eq 0 ] && [ "$(grep -c '^good ' "$log")" -eq 4 ]
    verdict $? "moert-info --check checks a --save-dir"
    mkdir "$dir/run/checkpoints"
    mv "$dir/saves/$last" "$dir/run/checkpoints"
    export MOERT_LOG=warn
    ends 2 "$dir/run/checkpoints has checkpoints, and --save-dir $dir/other has none" "a --save-dir without the run's checkpoints is refused" \
        alone "$program" "${model[@]}" --out "$dir/run" --resume auto --save-dir "$dir/other"
    [ ! -e "$dir/other" ] || verdict 1 "it is not made"
    refused 2 'is --out itself' "a --save-dir that is --out" alone "$program" "${model[@]}" --out "$dir/same" --save-dir "$dir/same/"
}
part beside

# ---- slow saves ----

skipped() {
    train skipped 2 --save-every 5 --save-beside skip --save-rate 1
    await
    [ "$status" -eq 0 ] && same_bytes "$dir/run/checkpoints" && [ "$(warnings 'is skipped, since the checkpoint of step 5 is not saved yet$')" -ge 1 ]
    verdict $? "a slow disk: checkpoints that come too soon are skipped, the last one is written"
}
waiting() {
    train waiting 2 --save-every 20 --save-beside wait --save-rate 4
    await
    [ "$status" -eq 0 ] && same_bytes "$dir/run/checkpoints" && [ "$(warnings "")" -eq 0 ] &&
        [ "$(steps_in "$dir/run/checkpoints")" = "step-00000020 step-00000040 step-00000060" ]
    verdict $? "a slow disk: checkpoints that come too soon wait"
}
terminated() {
    train terminated 2 --save-every 5 --save-beside wait --save-rate 2 --steps 100000
    steps_done 6
    kill -TERM "$(rank_pid 1)"
    await
    local done
    done=$(printf %08d "$(wc -l <"$dir/run/metrics.jsonl")")
    [ "$status" -eq 0 ] && grep -q 'continue with --resume auto' "$dir/stdout" && nothing_half "$dir/run" &&
        alone "$bin/moert-info" --check "$dir/run" && grep -q "^good .*/step-$done: " "$log"
    verdict $? "SIGTERM during a save: both checkpoints are completed"
}
for slow in skipped waiting terminated; do [ "$TEST_TIER" = check ] || part $slow; done

# ---- disks that fail ----

# failing NAME SIZE BREAK REPAIR PATTERN TITLE: runs the command BREAK after the first checkpoint, and the command REPAIR after a
# warning that matches PATTERN
failing() {
    local good disk=$work/$1/run/checkpoints
    mkdir -p "$disk"
    if ! mount -t tmpfs -o "size=$2" moert-test "$disk" 2>>"$log"; then
        verdict 0 "$6 # SKIP no permission to mount a tmpfs"
        return
    fi
    train "$1" 2 --save-every 300 --save-beside wait --keep-last 1 --steps 20000
    while [ ! -e "$disk/step-00000300" ] && runs; do :; done
    eval "$3"
    while [ "$(warnings "is not saved, training goes on: .*$5")" -lt 1 ] && runs; do :; done
    good=$(saved)
    eval "$4"
    while [ "$(saved)" = "$good" ] && runs; do :; done
    kill -TERM "$(rank_pid 0)"
    await
    echo "kept '$good' after the failure" >>"$log"
    [ "$status" -eq 0 ] && [[ $good =~ ^step-[0-9]{8}$ ]] && nothing_half "$disk" && [ "$(saved)" != "$good" ] &&
        alone "$bin/moert-info" --check "$disk"
    verdict $? "$6"
    umount "$disk"
}
part failing full 12m 'cat /dev/zero >"$disk/full" 2>/dev/null' 'rm "$disk/full"' 'No space left on device' \
    "a full disk: a warning says so, training goes on, and saves when there is room again"
# a second, read-only mount: the run's lock is a file that is open for writing, so the first mount cannot become read-only
[ "$TEST_TIER" = check ] || part failing read-only 12m 'mount --bind "$disk" "$disk" && mount -o remount,bind,ro "$disk"' 'until umount "$disk" || ! runs; do :; done' 'Read-only file system' \
    "a read-only disk: a warning says so, training goes on, and saves when it can write again"

# ---- SIGKILL ----

killed() { # NUMBER: kills both ranks at a random moment, then resumes
    local reported path whole=0
    RANDOM=$((SAVES_SEED + $1))
    train "killed-$1" 2 --save-every 1 --keep-last 1000 --save-beside "$([ $(($1 % 2)) -eq 0 ] && echo wait || echo skip)" --save-rate 20
    steps_done $((1 + RANDOM % (steps - 10)))
    sleep 0.0$((RANDOM % 100))
    kill -KILL $(rank_pid 0) $(rank_pid 1)
    await
    reported=$(sed -nE 's/^moert .*info: checkpoint ([^,]*), saved.*/\1/p' "$dir/stderr")
    for path in $reported; do [ -e "$path/manifest.json" ] || whole=1; done
    alone "$bin/moert-info" --check "$dir/run" || [ -z "$reported" ] || whole=1
    ! grep -q '^damaged' "$log" || whole=1
    log=$dir/stderr
    train "killed-$1" $((1 + RANDOM % 3)) --save-every 10 --keep-last 1000 --resume auto
    await
    [ $whole -eq 0 ] && [ "$status" -eq 0 ] && same_bytes "$dir/run/checkpoints" && nothing_half "$dir/run"
    verdict $? "SIGKILL $1: $(wc -w <<<"$reported") reported checkpoints are whole; the resumed run has the bytes of one without a kill"
}
for ((n = 0; n < kills; n++)); do [ "$TEST_TIER" = check ] || part killed $n; done
finish

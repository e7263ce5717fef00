#!/usr/bin/env bash
# run: check
# launch/train checks its own options and its surroundings before any MPI starts; launch/stop stops a training in order; shells complete
# the options of both.
. "$(dirname "$0")/../support/e2e.sh"
small=(--data LICENSE --hidden 32 --intermediate 32 --heads 2 --length 32 --batch 4)
unset SLURM_JOB_NODELIST PBS_NODEFILE LSB_DJOB_HOSTFILE LSB_HOSTS
export OMPI_MCA_ess_singleton_isolated=1

refused 2 '^train: unknown option --npp; ' "an option that neither launch/train nor moert-train knows" logged launch/train --npp 2 --steps 3
refused 2 '^train: unknown option --steps before --; ' "an option of moert-train before --" logged launch/train --steps 3 -- "${small[@]}"
refused 2 '^moert-train: unknown option --stesp; did you mean --steps' "an unknown option behind --" logged launch/train -- --stesp 3
refused 2 "^train: --np is 'x', not a number" "--np=x" logged launch/train --np=x -- "${small[@]}"
refused 2 '^train: --np needs a value' "--np without a value" logged launch/train --np
refused 2 "^train: there is no program '/none/mpirun'" "no mpirun" logged env MPIRUN=/none/mpirun launch/train "${small[@]}"
refused 2 "^train: SLURM_JOB_NODELIST is set, but there is no program 'scontrol'" "no Slurm" \
    logged env PATH="$(mktemp -d -p "$tmp"):/usr/bin:/bin" SLURM_JOB_NODELIST=a launch/train "${small[@]}"
printf 'node1\n# node2\nnode1 slots=2\n' >"$tmp/twice"
refused 2 'twice:3: node1: is already in line 1' "a host twice" logged launch/train --hosts="$tmp/twice" -- "${small[@]}"
printf '\xef\xbb\xbfnode1\n' >"$tmp/marked"
refused 2 'marked:1: begins with a byte order mark' "a byte order mark" logged launch/train --hosts "$tmp/marked" -- "${small[@]}"
logged launch/train --version && has_lines "$log" '^moert-train [0-9.]+, commit'
verdict $? "launch/train --version"
logged launch/train --np=2 --program="$bin/moert-train" "${small[@]}" --steps=1 && has_lines "$log" '^moert-train: 2 ranks'
verdict $? "options of the launcher take =, and -- may be left out"

# ---- the hosts of an allocation, by a stand-in for mpirun that prints its file of hosts ----

cat >"$tmp/mpirun" <<'END'
#!/bin/bash
[ "$1" != --version ] || { echo 'mpirun (Open MPI) 4.1.4'; exit; }
while [ $# -gt 0 ]; do [ "$1" != --hostfile ] || cat "$2"; shift; done
END
chmod +x "$tmp/mpirun"
printf '%s\n' localhost "$HOSTNAME" localhost >"$tmp/nodes"
allocated() { # VARIABLE=VALUE...: all launch scripts take the hosts and slots of this allocation
    local script
    for script in "launch/train --steps 1" "launch/preflight --seconds 1"; do
        logged env MPIRUN="$tmp/mpirun" "$@" $script && [ "$(cat "$log")" = "localhost slots=2"$'\n'"$HOSTNAME slots=1" ] || return 1
    done
}
allocated PBS_NODEFILE="$tmp/nodes"
verdict $? "the hosts of PBS"
allocated LSB_DJOB_HOSTFILE="$tmp/nodes" && allocated LSB_HOSTS="localhost localhost $HOSTNAME"
verdict $? "the hosts of LSF"
echo 'localhost slots=7' >"$tmp/own"
logged env MPIRUN="$tmp/mpirun" PBS_NODEFILE="$tmp/nodes" launch/train --hosts "$tmp/own" --steps 1 && has_lines "$log" '^localhost slots=7$'
verdict $? "--hosts takes precedence"

stop() { # stops a training of 2 ranks that is in progress
    launch/train --np 2 -- "${small[@]}" --steps 100000 --log-every 0 --out "$tmp/run" >"$tmp/said" 2>&1 &
    local i
    for ((i = 0; i < 300; i++)); do [ -s "$tmp/run/metrics.jsonl" ] && break || sleep 0.1; done
    launch/stop "$tmp/run" && [ ! -e "$tmp/run/.lock" ] && wait $! && has_lines "$tmp/said" '^stopped by a signal; continue with --resume auto' &&
        [ -d "$tmp/run/checkpoints" ]
}
check "launch/stop stops a training in order, and waits for its end" stop
refused 1 "^stop: no training writes to " "no training to stop" logged launch/stop "$tmp/run"
refused 2 "^stop: .*/none is no directory" "no run to stop" logged launch/stop "$tmp/none"

. launch/completion.bash
completes() { # WORDS WORD...: true if completing the last WORD gives WORDS
    local wanted=$1
    shift
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1))
    moert_complete "$1" "${!#}"
    [ "${COMPREPLY[*]}" = "$wanted" ] || { echo "${*}: ${COMPREPLY[*]}" >>"$log"; return 1; }
}
completes --hosts launch/train --ho && completes '--beta1 --beta2' "$bin/moert-train" --beta && completes '--restarts --resume' launch/train --np 2 --res &&
    completes 'auto must' launch/train -- --resume '' && completes --no-wait launch/stop --no
verdict $? "bash completes the options of the launcher and of moert-train"
if command -v zsh >/dev/null; then
    logged env BIN="$bin" zsh -fc 'autoload -U +X compinit bashcompinit; compinit -u -D; bashcompinit; source launch/completion.bash
        emulate -L sh; COMP_WORDS=("$BIN/moert-train" --pre); COMP_CWORD=1; moert_complete "$BIN/moert-train" --pre; echo "${COMPREPLY[@]}"' &&
        has_lines "$log" ' --precision '
    verdict $? "zsh completes them"
fi
finish

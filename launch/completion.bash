# Completes the options of moert's programs in bash, and the words that an option takes as values.
# At the first completion for a program in a shell, runs the program with --help to find the program's options.
declare -A moert_help
moert_complete() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} program=("$1") words
    case ${1##*/} in # these have commands, each with options of its own
    moert-launch | moert-op) [ "$COMP_CWORD" -eq 1 ] || program+=("${COMP_WORDS[1]}") ;;
    esac
    local key=${program[*]}
    [ -n "${moert_help[$key]+known}" ] || moert_help[$key]=$("${program[@]}" --help 2>/dev/null)
    words=$(sed -nE "s/^  $previous ([^ ]*\|[^ ]*).*/\1/p" <<<"${moert_help[$key]}" | tr '|' ' ')
    if [ -z "$words" ] && { [ "$COMP_CWORD" -eq 1 ] || [ "${word#-}" != "$word" ]; }; then
        words=$(sed -nE 's/^  ([-a-z]+).*/\1/p; /^$/{n; s/^([a-z-]+): .*/\1/p}' <<<"${moert_help[$key]}")
    fi
    mapfile -t COMPREPLY < <(compgen -W "$words" -- "$word")
}
complete -o default -F moert_complete moert-train moert-layer moert-op moert-info moert-report moert-tune moert-preflight moert-launch

# Completes the options of moert's programs and launch scripts in bash, and the words that an option takes as values.
# At the first completion for a program in a shell, runs the program with --help to find the program's options.
# zsh: autoload -U +X compinit bashcompinit && compinit && bashcompinit && source completion.bash
declare -A moert_help
moert_complete() {
    local word=${COMP_WORDS[COMP_CWORD]} previous=${COMP_WORDS[COMP_CWORD - 1]} program=("$1") train='' words
    case ${1##*/} in # these have commands, each with options of its own
    moert-launch | moert-op) [ "$COMP_CWORD" -eq 1 ] || program+=("${COMP_WORDS[1]}") ;;
    esac
    local key=${program[*]}
    case $key in # launch/train also takes the options of moert-train, launch/generate and launch/evaluate those of moert-generate
    */train) train=$(dirname "$key")/../build/bin/moert-train ;;
    *moert-launch\ train) train=moert-train ;;
    */generate | */evaluate) train=$(dirname "$key")/../build/bin/moert-generate ;;
    *moert-launch\ generate | *moert-launch\ evaluate) train=moert-generate ;;
    esac
    if [ -z "${moert_help[$key]+known}" ]; then
        moert_help[$key]=$("${program[@]}" --help 2>/dev/null; [ -z "$train" ] || "$train" --help 2>/dev/null)
    fi
    words=$(sed -nE "s#^  $previous ([^ ]*\|[^ ]*).*#\1#p" <<<"${moert_help[$key]}" | tr '|' '\n' | grep -v '[A-Z]')
    if [ -z "$words" ] && { [ "$COMP_CWORD" -eq 1 ] || [ "${word#-}" != "$word" ]; }; then
        words=$(sed -nE '/^$/{n; s/^([a-z-]+): .*/\1/p}; s/^  ([-a-z0-9]+).*/\1/p' <<<"${moert_help[$key]}")
    fi
    COMPREPLY=($(compgen -W "$words" -- "$word"))
}
complete -o default -F moert_complete moert-train moert-layer moert-op moert-info moert-report moert-tune moert-preflight moert-generate moert-launch \
    launch/train launch/stop launch/preflight launch/scaling launch/tokenize launch/detokenize launch/generate launch/evaluate

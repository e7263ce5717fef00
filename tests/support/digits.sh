# digits RUN: prints the numbers of a run's metrics that must not depend on the machine, the ranks or the time.
# same_run RUN RUN: true if metrics, checkpoints and models of two runs agree bit for bit; $log gets the differences.
# shellcheck shell=bash
digits() { sed -E 's/, "(tokens_per_s|save_held_s|save_s|rank_load|moved_experts|move_s|clones|model_flops_per_s|mfu)": [^,}]*//g' "$1/metrics.jsonl"; }
same_run() {
    {
        [ -s "$1/metrics.jsonl" ] && [ -s "$1/model/model.safetensors" ] && diff <(digits "$1") <(digits "$2") &&
            diff -r "$1/checkpoints" "$2/checkpoints" && diff -r "$1/model" "$2/model"
    } >>"${log:-/dev/stdout}" 2>&1
}

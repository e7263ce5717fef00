# digits RUN: prints the numbers of a run's metrics that must not depend on the machine, the ranks or the time.
# shellcheck shell=bash
digits() { sed -E 's/, "(tokens_per_s|save_held_s|save_s|rank_load|moved_experts|move_s|clones|model_flops_per_s|mfu)": [^,}]*//g' "$1/metrics.jsonl"; }

#!/usr/bin/env python3
"""What of released models fits on which number of GPUs, by moert-info's estimate, as a Markdown table.

  bench/fits.py [--memory 80=77G 141=138G] [--ranks 1 2 4 8 16 32 64] [--length 4096] [--info build/bin/moert-info]

--memory names sizes of GPUs and what a rank may take of them, without the driver's context. Each rank trains one sequence at a time,
all in bf16; ranks share the experts as far as there are experts. An entry is the least recomputation that fits, "+ chunks" if the
loss takes chunks of tokens, "+ bf16" if moments and gradients must be bf16, and the GiB that the fullest rank then takes; "-" if
nothing fits. Copies of weights are those of the device that moert-info finds, so run it where the GPUs are. Needs only Python.
"""
import argparse
import json
import subprocess
import tempfile
from pathlib import Path

GOLDEN = Path(__file__).parent.parent / "tests/golden"
TYPES = {"precision": "bf16", "dense": "bf16", "dispatch": "bf16", "combine": "bf16"}
# name: the golden case whose config.json has the model's form, and the model's sizes
MODELS = {
    "OLMoE-1B-7B": ("family/olmoe-clip-llama3", {
        "vocab_size": 50304, "hidden_size": 2048, "intermediate_size": 1024, "num_hidden_layers": 16, "num_attention_heads": 16,
        "num_key_value_heads": 16, "num_experts": 64, "num_experts_per_tok": 8, "clip_qkv": None}),
    "DeepSeek-V2-Lite": ("family/deepseek-v2-yarn", {
        "vocab_size": 102400, "hidden_size": 2048, "intermediate_size": 10944, "moe_intermediate_size": 1408, "num_hidden_layers": 27,
        "num_attention_heads": 16, "num_key_value_heads": 16, "kv_lora_rank": 512, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "qk_head_dim": 192, "head_dim": 64, "v_head_dim": 128, "n_routed_experts": 64, "n_shared_experts": 2, "num_experts_per_tok": 6,
        "n_group": 1, "topk_group": 1, "topk_method": "greedy"}),
    "gpt-oss-20b": ("family/gpt-oss", {
        "vocab_size": 201088, "hidden_size": 2880, "intermediate_size": 2880, "num_hidden_layers": 24, "num_attention_heads": 64,
        "num_key_value_heads": 8, "head_dim": 64, "num_local_experts": 32, "num_experts_per_tok": 4, "sliding_window": 128,
        "layer_types": ["sliding_attention", "full_attention"] * 12}),
    "Qwen3-30B-A3B": ("model/qwen3-tiny", {
        "vocab_size": 151936, "hidden_size": 2048, "intermediate_size": 6144, "moe_intermediate_size": 768, "num_hidden_layers": 48,
        "num_attention_heads": 32, "num_key_value_heads": 4, "head_dim": 128, "num_local_experts": 128, "num_experts_per_tok": 8}),
}  # fmt: skip


def write_config(directory, case, sizes, length):
    config = json.loads((GOLDEN / case / "config.json").read_text()) | sizes | {"max_position_embeddings": length}
    if "layer_types" in config:  # `sizes` may have fewer layers than layer_types lists
        config["layer_types"] = config["layer_types"][: config["num_hidden_layers"]]
    (Path(directory) / "config.json").write_text(json.dumps(config))
    return next(config[key] for key in ("num_experts", "num_local_experts", "n_routed_experts") if key in config)


def estimate(args, directory, experts, ranks, most, states="f32"):
    command = [args.info, "--json", "--model", directory, "--ranks", ranks, "--ep", min(ranks, experts), "--batch", ranks]
    command += ["--length", args.length, "--memory", most, "--recompute", "auto"]
    command += ["--moments", states, "--gradients", states]
    for option, value in TYPES.items():
        command += [f"--{option}", value]
    memory = json.loads(subprocess.run([str(word) for word in command], check=True, capture_output=True, text=True).stdout)["memory"]
    if not memory["fits"]:
        return estimate(args, directory, experts, ranks, most, "bf16") if states == "f32" else "-"
    chunks = " + chunks" if memory["loss_chunk"] else ""
    bf16 = " + bf16" if states == "bf16" else ""
    return f"`{memory['recompute']}`{chunks}{bf16}, {memory['needed'] / 2**30:.0f}"


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memory", nargs="+", default=["80=77G", "141=138G"])
    parser.add_argument("--ranks", nargs="+", type=int, default=[1, 2, 4, 8, 16, 32, 64])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--info", default="build/bin/moert-info")
    args = parser.parse_args()
    print("| model | GB | " + " | ".join(str(ranks) for ranks in args.ranks) + " |")
    print("|---" * (2 + len(args.ranks)) + "|")
    for name, (case, sizes) in MODELS.items():
        with tempfile.TemporaryDirectory() as directory:
            experts = write_config(directory, case, sizes, args.length)
            for memory in args.memory:
                size, most = memory.split("=")
                row = [estimate(args, directory, experts, ranks, most) for ranks in args.ranks]
                print(f"| {name} | {size} | " + " | ".join(row) + " |", flush=True)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Rates of moert-generate and of transformers' generate(), both with a cache, batch 1, greedily. The sides alternate.

  torch_generate.py [--rounds 5] [--tokens 64] [--dtype float32|bfloat16] [--threads 2]

Makes a Qwen3-MoE model with 400 M random weights, of which a token reads 140 M. In each round every side generates the same number of
tokens after the same prompt; the time of the prompt does not count. In float32 the tokens of all sides must be equal. Prints medians, and
the bytes of weights that a token reads, as a part of the bytes that these threads copy in the same time (bytes read and written).
"""
import argparse
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import torch
from transformers import AutoModelForCausalLM, Qwen3MoeConfig, Qwen3MoeForCausalLM, logging

ROOT = Path(__file__).resolve().parents[2]
SHAPE = dict(
    vocab_size=32000, hidden_size=1024, intermediate_size=2048, moe_intermediate_size=512, num_hidden_layers=12, num_attention_heads=16,
    num_key_value_heads=4, head_dim=64, num_experts=16, num_experts_per_tok=4, norm_topk_prob=True, tie_word_embeddings=False,
    max_position_embeddings=4096, eos_token_id=None, bos_token_id=None,
)  # fmt: skip
PROMPT = [5, 77, 1234, 900, 31, 8, 2000, 17]
SIDES = (("eager", "eager"), ("sdpa", "eager"), ("sdpa", "grouped_mm"), ("sdpa", "batched_mm"))  # attention, experts


def make(directory):
    torch.manual_seed(0)
    model = Qwen3MoeForCausalLM(Qwen3MoeConfig(**SHAPE)).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if "norm" not in name:
                weight.normal_(0, 0.06 if "gate.weight" in name else 0.04)
    model.save_pretrained(directory)
    read = sum(w.numel() * (SHAPE["num_experts_per_tok"] / SHAPE["num_experts"] if ".experts." in n else "embed_tokens" not in n)
               for n, w in model.named_parameters())  # fmt: skip
    return read


class Moert:
    """A moert-generate that continues the lines it gets."""

    def __init__(self, directory, dtype, tokens):
        low = [] if dtype == "float32" else ["--precision", "bf16", "--dense", "bf16"]
        self.errors = tempfile.TemporaryFile("w+")
        words = [ROOT / "build/bin/moert-generate", "--model", directory, "--lines", "--rate", "--temperature", 0, "--count", tokens + 1] + low
        self.job = subprocess.Popen([str(word) for word in words], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=self.errors, text=True)

    def run(self):
        # another text first, so that the prompt is not cached
        for text in ([1, 2], PROMPT):
            self.job.stdin.write(" ".join(map(str, text)) + "\n")
            self.job.stdin.flush()
            made = [int(word) for word in self.job.stdout.readline().split()]
        time.sleep(0.1)
        self.errors.seek(0)
        rates = re.findall(r"then ([0-9.]+) tokens/s", self.errors.read())
        return float(rates[-1]), made


class Torch:
    def __init__(self, directory, dtype, tokens, attention, experts):
        self.tokens = tokens
        self.model = AutoModelForCausalLM.from_pretrained(
            directory, dtype=getattr(torch, dtype), attn_implementation=attention, experts_implementation=experts
        ).eval()

    def seconds(self, count):
        begun = time.perf_counter()
        with torch.inference_mode():
            made = self.model.generate(torch.tensor([PROMPT]), max_new_tokens=count, min_new_tokens=count, do_sample=False, pad_token_id=0)
        return time.perf_counter() - begun, made[0, len(PROMPT) :].tolist()

    def run(self):
        first, _ = self.seconds(1)
        all_s, made = self.seconds(self.tokens + 1)
        return self.tokens / (all_s - first), made


def copy_rate():
    """Bytes read and written a second by a copy of 1 GiB, the best of 5."""
    a = torch.ones(1 << 28)
    b, best = torch.empty_like(a), 0.0
    for _ in range(5):
        begun = time.perf_counter()
        b.copy_(a)
        best = max(best, 2 * a.numel() * 4 / (time.perf_counter() - begun))
    return best


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=64)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--threads", type=int, default=2)
    args = parser.parse_args()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    torch.set_num_threads(args.threads)
    with tempfile.TemporaryDirectory() as directory:
        read = make(directory)
        sides = {"moert": Moert(directory, args.dtype, args.tokens)}
        for attention, experts in SIDES:
            sides[f"{attention}, {experts}"] = Torch(directory, args.dtype, args.tokens, attention, experts)
        rates, texts = {name: [] for name in sides}, {}
        for number in range(-1, args.rounds):  # the first round warms up
            for name, side in sides.items():
                rate, texts[name] = side.run()
                if number >= 0:
                    rates[name].append(rate)
    same = len(set(map(tuple, texts.values()))) == 1
    if args.dtype == "float32" and not same:
        sys.exit(f"the tokens differ: {texts}")
    medians = {name: statistics.median(values) for name, values in rates.items()}
    rivals = [median for name, median in medians.items() if name != "moert"]
    print(f"{args.dtype}, {args.threads} threads, {args.rounds} rounds of {args.tokens} tokens; {'equal' if same else 'other'} tokens")
    for name, values in rates.items():
        print(f"{name:18} {medians[name]:6.1f} tokens/s   {min(values):.1f} to {max(values):.1f}")
    print(f"moert / eager: {medians['moert'] / medians['eager, eager']:.2f}   moert / fastest: {medians['moert'] / max(rivals):.2f}")
    width, copied = (4 if args.dtype == "float32" else 2), copy_rate()
    rate = medians["moert"] * read * width
    print(f"{read * width / 1e6:.0f} MB of weights a token, {rate / 1e9:.1f} GB/s; a copy: {copied / 1e9:.1f} GB/s, ratio {rate / copied:.2f}")


main()

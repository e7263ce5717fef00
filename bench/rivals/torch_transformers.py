#!/usr/bin/env python3
"""A Qwen3-MoE model of transformers, in bf16, for bench/rivals/torch_train.py train --experts transformers.

    torch_transformers.py make-model DIR [SIZES...]     new bf16 weights for both contenders; SIZES as of moert-train's new model
    torch_transformers.py gemm [SIZE]                   TFLOP/s of a bf16 GEMM of SIZE x SIZE matrices

Weights, gradients and the optimizer's moments are bf16, as transformers trains such a model by default. That moves less memory
than moert-train, whose master weights, gradients and moments are float32. Experts use torch's grouped GEMM, attention uses
scaled_dot_product_attention.
"""
import argparse
import statistics
import time

import torch
import torch.nn.functional as F
from torch import nn

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
HOW = {"dtype": torch.bfloat16, "attn_implementation": "sdpa", "experts_implementation": "grouped_mm"}
WARM_S, SAMPLES = 2.0, 9


class Model(nn.Module):
    """The cross-entropy, and the balancing loss over the rows of all layers together."""

    def __init__(self, model):
        super().__init__()
        self.model = model.train()

    def forward(self, inputs, targets):
        out = self.model(input_ids=inputs, use_cache=False, output_router_logits=True)
        return F.cross_entropy(out.logits.flatten(0, 1).float(), targets.flatten()), out.aux_loss


def load(directory):
    from transformers import Qwen3MoeForCausalLM

    torch.set_float32_matmul_precision("high")
    return Model(Qwen3MoeForCausalLM.from_pretrained(directory, **HOW).to(DEVICE))


def new_model(args):
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    sizes = {"vocab_size": args.vocabulary, "hidden_size": args.hidden, "moe_intermediate_size": args.intermediate}
    heads = {"num_attention_heads": args.heads, "num_key_value_heads": args.kv_heads, "head_dim": args.head_size}
    experts = {"num_experts": args.experts, "num_experts_per_tok": args.topk, "norm_topk_prob": True}
    others = {"num_hidden_layers": args.layers, "max_position_embeddings": args.length, "tie_word_embeddings": False}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    torch.manual_seed(1)
    with torch.device(DEVICE):
        config = Qwen3MoeConfig(**sizes, **heads, **experts, **others, rope_parameters=rope)
        return Qwen3MoeForCausalLM._from_config(config, **HOW)


def make_model(args):
    new_model(args).save_pretrained(args.directory)


def gemm(args):
    a, b = (torch.randn(args.size, args.size, device=DEVICE, dtype=torch.bfloat16) for _ in range(2))
    rates, began = [], time.perf_counter()
    while len(rates) < SAMPLES or time.perf_counter() - began < WARM_S:  # the last samples run on a hot GPU
        start = time.perf_counter()
        for _ in range(10):
            a @ b
        if DEVICE == "cuda":
            torch.cuda.synchronize()
        rates.append(20.0 * args.size**3 / (time.perf_counter() - start) / 1e12)
    print(f"{statistics.median(rates[-SAMPLES:]):.1f}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    model = commands.add_parser("make-model")
    model.set_defaults(run=make_model)
    model.add_argument("directory")
    sizes = {"vocabulary": 256, "hidden": 128, "intermediate": 256, "layers": 2, "heads": 4, "kv-heads": 4, "head-size": 32}
    for name, default in (sizes | {"experts": 8, "topk": 2, "length": 512}).items():
        model.add_argument(f"--{name}", type=int, default=default)
    gemm_command = commands.add_parser("gemm")
    gemm_command.set_defaults(run=gemm)
    gemm_command.add_argument("size", type=int, nargs="?", default=8192)
    args, _ = parser.parse_known_args()  # make-model also receives options of the batch
    args.run(args)


if __name__ == "__main__":
    main()

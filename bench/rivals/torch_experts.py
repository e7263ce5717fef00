#!/usr/bin/env python3
"""Times a Qwen3-MoE block of transformers, forward and backward, with each experts implementation, alternating, on the CPU.

    make wheel && pip install build/python/moert-*.whl torch transformers
    bench/rivals/torch_experts.py [--dtype float32|bfloat16] [--rounds 7]

Prints the median and the least time of each, and moert's speed relative to the fastest other one, from the medians and from the least
times. Verifies y and all gradients against those of eager.
"""
import argparse
import time

import moert.transformers
import torch
import transformers
from transformers.models.qwen3_moe.modeling_qwen3_moe import Qwen3MoeSparseMoeBlock


def main():
    parser = argparse.ArgumentParser()
    for name, value in (("tokens", 2048), ("hidden", 1024), ("intermediate", 512), ("experts", 32), ("topk", 4), ("rounds", 7)):
        parser.add_argument(f"--{name}", type=int, default=value)
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--implementations", nargs="+", default=["moert", "grouped_mm", "eager"])
    options = parser.parse_args()
    torch.manual_seed(1)
    config = transformers.Qwen3MoeConfig(hidden_size=options.hidden, moe_intermediate_size=options.intermediate,
                                         num_experts=options.experts, num_experts_per_tok=options.topk, norm_topk_prob=True)
    block = Qwen3MoeSparseMoeBlock(config)
    for parameter in block.parameters():
        torch.nn.init.normal_(parameter, std=0.02)
    block = block.to(getattr(torch, options.dtype))
    x, dy = (torch.randn(1, options.tokens, options.hidden, dtype=getattr(torch, options.dtype)) for _ in range(2))
    x.requires_grad_()

    def run(implementation):
        config._experts_implementation_internal = implementation
        for tensor in (x, *block.parameters()):
            tensor.grad = None
        start = time.perf_counter()
        y = block(x)
        y = y[0] if isinstance(y, tuple) else y
        y.backward(dy)
        return (time.perf_counter() - start) * 1e3, y

    def result(implementation):
        _, y = run(implementation)
        return [y.detach().float()] + [tensor.grad.float() for tensor in (x, *block.parameters())]

    expected = result("eager")
    error = max(((a - b).norm() / b.norm()).item() for a, b in zip(result("moert"), expected))
    limit = 1e-5 if options.dtype == "float32" else 3e-2
    times = {implementation: [] for implementation in options.implementations}
    for _ in range(options.rounds):
        for implementation, known in times.items():
            known.append(run(implementation)[0])
    median = {name: sorted(known)[len(known) // 2] for name, known in times.items()}
    print(f"# torch {torch.__version__}, transformers {transformers.__version__}, moert {moert.__version__}, "
          f"{torch.get_num_threads()} threads, {moert.default_context().device_name}")
    print(f"# {options}")
    for name, known in times.items():
        print(f"{name:12} median {median[name]:8.1f} ms  least {min(known):8.1f} ms")
    others = [name for name in times if name != "moert"]
    print(f"moert is {min(median[name] for name in others) / median['moert']:.2f} times as fast by medians, "
          f"{min(min(times[name]) for name in others) / min(times['moert']):.2f} by least times; wrong {int(error > limit)} "
          f"(relative error {error:.2g})")


main()

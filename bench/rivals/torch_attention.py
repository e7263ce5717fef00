#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention as a rival: TFLOP/s, forward and backward, in bf16.

  torch_attention.py [--sequences S] [--length L] [--heads N] [--kv-heads M] [--head-size D] [--json FILE]

The rows of bench_attention, with the same FLOPs. A sample is WARM_S of calls in a row, not counted, then TIMED_S of calls; the rate is
the median of the samples. The time of the backward is that of forward and backward, minus that of forward.
"""
import argparse
import json

import torch
from torch_grouped_mm import seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (('sequences', 16), ('length', 1024), ('heads', 32), ('kv-heads', 4), ('head-size', 128)):
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--json')
    o = parser.parse_args()
    torch.manual_seed(1)

    def uniform(heads):
        shape = o.sequences, o.length, heads, o.head_size
        return torch.empty(*shape, device='cuda', dtype=torch.bfloat16).uniform_(-2, 2).transpose(1, 2).requires_grad_()

    q, k, v, dout = uniform(o.heads), uniform(o.kv_heads), uniform(o.kv_heads), uniform(o.heads).detach()

    def forward():
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True)

    def both():
        torch.autograd.grad(forward(), (q, k, v), dout)

    flops = o.sequences * o.heads * o.head_size * o.length * (o.length + 1)
    with torch.no_grad():
        forward_s = seconds(forward)
    times = {'forward': (2 * flops, forward_s), 'backward': (5 * flops, seconds(both) - forward_s)}
    rows = []
    for op, (work, time_s) in times.items():
        rows.append({'op': op, 'dtype': 'bf16', 'S': o.sequences, 'L': o.length, 'heads': o.heads, 'kv_heads': o.kv_heads,
                     'D': o.head_size, 'tflops': work / time_s / 1e12, 'backend': f'torch {torch.__version__}'})
        print(f'{op:9} bf16  {o.sequences:5} {o.length:6} {o.heads:5} {o.kv_heads:8} {o.head_size:4} '
              f'{rows[-1]["tflops"]:8.1f} TFLOP/s', flush=True)
    if o.json:
        with open(o.json, 'w') as file:
            json.dump(rows, file)


if __name__ == '__main__':
    main()

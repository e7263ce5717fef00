#!/usr/bin/env python3
"""PyTorch's scaled_dot_product_attention as a rival: TFLOP/s, forward and backward, in bf16.

  torch_attention.py [--sequences S] [--length L] [--heads N] [--kv-heads M] [--head-size D] [--value-size E] [--flex] [--json FILE]

--flex times flex_attention, compiled, instead. The rows of bench_attention, with the same FLOPs. A sample is WARM_S of calls in a row, not counted, then TIMED_S of calls; the rate is
the median of the samples. The time of the backward is that of forward and backward, minus that of forward.
"""
import argparse
import json

import torch
from torch_grouped_mm import seconds


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, default in (('sequences', 16), ('length', 1024), ('heads', 32), ('kv-heads', 4), ('head-size', 128), ('value-size', 0)):
        parser.add_argument(f'--{name}', type=int, default=default)
    parser.add_argument('--flex', action='store_true')
    parser.add_argument('--json')
    o = parser.parse_args()
    torch.manual_seed(1)

    value_size = o.value_size or o.head_size

    def uniform(heads, width):
        shape = o.sequences, o.length, heads, width
        return torch.empty(*shape, device='cuda', dtype=torch.bfloat16).uniform_(-2, 2).transpose(1, 2).requires_grad_()

    q, k, v, dout = (uniform(o.heads, o.head_size), uniform(o.kv_heads, o.head_size), uniform(o.kv_heads, value_size),
                     uniform(o.heads, value_size).detach())

    if o.flex:
        from torch.nn.attention import flex_attention
        mask = flex_attention.create_block_mask(lambda b, h, i, j: i >= j, None, None, o.length, o.length)
        flex = torch.compile(flex_attention.flex_attention)

    def forward():
        if o.flex:
            return flex(q, k, v, block_mask=mask, enable_gqa=o.heads != o.kv_heads)
        return torch.nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=o.heads != o.kv_heads)

    def both():
        torch.autograd.grad(forward(), (q, k, v), dout)

    pairs = o.sequences * o.heads * o.length * (o.length + 1)
    with torch.no_grad():
        forward_s = seconds(forward)
    times = {'forward': (pairs * (o.head_size + value_size), forward_s),
             'backward': (pairs * (3 * o.head_size + 2 * value_size), seconds(both) - forward_s)}
    rows = []
    for op, (work, time_s) in times.items():
        rows.append({'op': op, 'dtype': 'bf16', 'S': o.sequences, 'L': o.length, 'heads': o.heads, 'kv_heads': o.kv_heads,
                     'D': o.head_size, 'E': value_size, 'tflops': work / time_s / 1e12, 'backend': f'torch {torch.__version__}'})
        print(f'{op:9} bf16  {o.sequences:5} {o.length:6} {o.heads:5} {o.kv_heads:8} {o.head_size:4} {value_size:4} '
              f'{rows[-1]["tflops"]:8.1f} TFLOP/s', flush=True)
    if o.json:
        with open(o.json, 'w') as file:
            json.dump(rows, file)


if __name__ == '__main__':
    main()

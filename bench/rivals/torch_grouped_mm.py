#!/usr/bin/env python3
"""torch._grouped_mm as a rival: TFLOP/s of its three orientations, in bf16.

  torch_grouped_mm.py --rows FILE --json FILE

Runs the rows of bench_op --json on the same groups, and writes the same rows with PyTorch's rate. A sample is WARM_S of calls
in a row, not counted, then TIMED_S of calls, as in bench_op, since a GPU's clock depends on its temperature. The rate is the
median of the samples.
"""
import argparse
import json
import statistics
import time

import torch

WARM_S, TIMED_S, SAMPLES = 0.025, 0.05, 3
TYPES = {'bf16': 'bfloat16', 'f16': 'float16'}


def seconds(call):
    call()
    torch.cuda.synchronize()
    start = time.perf_counter()
    call()
    torch.cuda.synchronize()
    one, samples = time.perf_counter() - start, []
    for _ in range(SAMPLES):
        for _ in range(int(WARM_S / one) + 1):
            call()
        torch.cuda.synchronize()
        calls, start = int(TIMED_S / one) + 1, time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        samples.append((time.perf_counter() - start) / calls)
    return statistics.median(samples)


def operands(row):
    def uniform(*shape):
        return torch.empty(*shape, device='cuda', dtype=getattr(torch, TYPES[row['dtype']])).uniform_(-1, 1)

    offsets = torch.tensor(row['ends'], device='cuda', dtype=torch.int32)
    x, y = uniform(row['rows'], row['K']), uniform(row['rows'], row['N'])
    weight = uniform(row['E'], row['N'], row['K'])
    return {'gemm_forward': lambda: torch._grouped_mm(x, weight.transpose(-2, -1), offs=offsets),
            'gemm_dgrad': lambda: torch._grouped_mm(y, weight, offs=offsets),
            'gemm_wgrad': lambda: torch._grouped_mm(y.t(), x, offs=offsets)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--rows', required=True)
    parser.add_argument('--json', required=True)
    options = parser.parse_args()
    torch.manual_seed(1)
    with open(options.rows) as file:
        rows = json.load(file)
    shape, calls = None, None
    for row in rows:
        if shape != (shape := (row['E'], row['rows'], row['N'], row['K'], row['groups'])):
            calls = None  # frees the operands
            calls = operands(row)
        row['tflops'] = 2e-12 * row['rows'] * row['N'] * row['K'] / seconds(calls[row['op']])
        row['backend'] = f'torch {torch.__version__}'
        print(f"{row['op']:13} {row['E']:4} {row['rows']:8} {row['N']:6} {row['K']:6} {row['groups']:8} "
              f"{row['tflops']:8.1f} TFLOP/s", flush=True)
    with open(options.json, 'w') as file:
        json.dump(rows, file)


if __name__ == '__main__':
    main()

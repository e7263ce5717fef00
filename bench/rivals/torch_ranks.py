#!/usr/bin/env python3
"""What torch_all_to_all.py and torch_moe_layer.py share: a process for each GPU, routing, times, rows. By itself it runs cases of both
in one set of processes, whose start takes longer than most cases.

  torch_ranks.py --ranks R [--exchange T,H,SKEW...] [--model NAME...] [--json FILE]
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing

WARM, SAMPLES, SAMPLE_S = 3, 7, 0.05


def routing(skew, tokens, topk, experts, seed):
    """[tokens,topk] different experts, as bench/common/tokens.c draws them: alike, Zipf, one with 30 % of the slots, or one alone."""
    generator = torch.Generator(device='cuda').manual_seed(seed)
    keys = torch.rand(tokens, experts, device='cuda', generator=generator, dtype=torch.float64)
    if skew == 'zipf':
        keys = keys ** torch.arange(1, experts + 1, device='cuda')
    if skew == 'hot':
        keys[:, 0] = torch.where(torch.rand(tokens, device='cuda', generator=generator) < 0.3 * topk, 2.0, -1.0)
    return keys.topk(topk, 1).indices


def seconds(call):
    """Of a call, of the slowest rank: the median of some samples of calls in a row behind a barrier."""
    def sample(calls):
        torch.cuda.synchronize()
        dist.barrier()
        start = time.perf_counter()
        for _ in range(calls):
            call()
        torch.cuda.synchronize()
        slowest = torch.tensor([(time.perf_counter() - start) / calls], device='cuda', dtype=torch.float64)
        dist.all_reduce(slowest, op=dist.ReduceOp.MAX)
        return slowest.item()

    sample(WARM)
    calls = max(1, int(SAMPLE_S / sample(1)))
    return statistics.median(sample(calls) for _ in range(SAMPLES))


def right(ok):
    """Whether it is so on all ranks."""
    verdict = torch.tensor([int(bool(ok))], device='cuda')
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict.item())


def _rank(rank, ranks, work, options):
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29512')
    torch.cuda.set_device(rank)
    dist.init_process_group('nccl', rank=rank, world_size=ranks, device_id=torch.device('cuda', rank))
    rows = []
    work(rank, ranks, options, rows)
    if rank == 0 and options.json:
        with open(options.json, 'w') as file:
            json.dump(rows, file, indent=1)
    wrong = any(row['wrong'] for row in rows)
    dist.destroy_process_group()
    if wrong:
        raise SystemExit(1)


def run(work, options):
    """work(rank, ranks, options, rows) in a process for each of options.ranks GPUs; exits with 1 when a row is wrong."""
    multiprocessing.spawn(_rank, args=(options.ranks, work, options), nprocs=options.ranks)


def show(rank, rows, row, text):
    rows.append(row)
    if rank == 0:
        print(text, flush=True)


def work_on_all(rank, ranks, options, rows):
    import torch_all_to_all
    import torch_moe_layer
    for case in options.exchange:
        tokens, hidden, skew = case.split(',')
        torch_all_to_all.work(rank, ranks, argparse.Namespace(tokens=int(tokens), hidden=int(hidden), topk=options.topk, experts=options.experts,
                                                              dtype='bf16', skew=skew), rows)
        torch.cuda.empty_cache()
    for name in options.model:
        torch_moe_layer.work(rank, ranks, argparse.Namespace(model=[name], tokens=options.tokens), rows)
        torch.cuda.empty_cache()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, standard in (('ranks', torch.cuda.device_count()), ('tokens', 8192), ('topk', 8), ('experts', 128)):
        parser.add_argument('--' + name, type=int, default=standard)
    parser.add_argument('--exchange', nargs='*', default=[])
    parser.add_argument('--model', nargs='*', default=[])
    parser.add_argument('--json')
    run(work_on_all, parser.parse_args())


if __name__ == '__main__':
    main()

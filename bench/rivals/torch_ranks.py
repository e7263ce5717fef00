#!/usr/bin/env python3
"""PyTorch over NCCL as a rival of bench_exchange and bench_layer, one process per GPU.

  torch_ranks.py --ranks R [--exchange T,H,SKEW...] [--model NAME...] [--tokens T] [--topk K] [--experts E] [--dtype bf16|f32] [--json FILE]

--exchange: all_to_all only sends rows that are packed already. dispatch also packs the rows of all slots by the rank of their experts, and
sorts received rows by expert. combine sends them back and sums each token's rows by weight. Counts are known beforehand. GB/s count the
rows for other ranks, as in bench_exchange.

--model: an expert-parallel MoE layer in bf16: all-to-all, torch._grouped_mm, SwiGLU. The router is that of transformers' Qwen3-MoE: a linear
layer, softmax in float32, the K highest, normalised. Backward gives the gradients of x and of all weights. The first tokens of every rank
are compared with a loop over their experts in float32.

All cases run in one set of processes, since starting them takes longer than most cases.
"""
import argparse
import json
import os
import statistics
import time

import torch
import torch.distributed as dist
import torch.multiprocessing as multiprocessing
import torch.nn.functional as functional

WARM, SAMPLES, SAMPLE_S = 3, 7, 0.05
TYPES = {'bf16': torch.bfloat16, 'f32': torch.float32}
MODELS = {'qwen3-30b': (2048, 768, 128, 8), 'olmoe': (2048, 1024, 64, 8), 'deepseek-v3': (7168, 2048, 256, 8),
          'mixtral-8x7b': (4096, 14336, 8, 2)}


def routing(skew, tokens, topk, experts, seed):
    """[tokens,topk] distinct experts, drawn as in bench/common/tokens.c: balanced, zipf, or hot (one expert gets 30 % of the slots)."""
    generator = torch.Generator(device='cuda').manual_seed(seed)
    keys = torch.rand(tokens, experts, device='cuda', generator=generator, dtype=torch.float64)
    if skew == 'zipf':
        keys = keys ** torch.arange(1, experts + 1, device='cuda')
    if skew == 'hot':
        keys[:, 0] = torch.where(torch.rand(tokens, device='cuda', generator=generator) < 0.3 * topk, 2.0, -1.0)
    return keys.topk(topk, 1).indices


def seconds(call):
    """Seconds of a call on the slowest rank: the median of samples of calls in a row after a barrier."""
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
    """Whether `ok` is true on all ranks."""
    verdict = torch.tensor([int(bool(ok))], device='cuda')
    dist.all_reduce(verdict, op=dist.ReduceOp.MIN)
    return bool(verdict.item())


def show(rank, rows, row, text):
    rows.append(row)
    if rank == 0:
        print(text, flush=True)


def plan(index, ranks, experts):
    """The plan of index[tokens,topk]: the slots' order by expert, rows to and from each rank, the order by expert of received rows, and
    the ends of each local expert's rows. Exchanges counts over NCCL."""
    local = experts // ranks
    order = torch.argsort(index.reshape(-1), stable=True)
    counts = torch.bincount(index.reshape(-1), minlength=experts)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    arriving = arriving.view(ranks, local)
    sent, received = counts.view(ranks, local).sum(1).tolist(), arriving.sum(1).tolist()
    owner = torch.arange(local, device='cuda').repeat(ranks).repeat_interleave(arriving.reshape(-1))
    return order, sent, received, torch.argsort(owner, stable=True), arriving.sum(0).cumsum(0).to(torch.int32)


def exchange(rank, ranks, case, options, rows):
    tokens, hidden, skew = case.split(',')
    tokens, hidden, topk, experts = int(tokens), int(hidden), options.topk, options.experts
    index = routing(skew, tokens * ranks, topk, experts, 1)[rank * tokens:(rank + 1) * tokens]
    x = torch.empty(tokens, hidden, device='cuda', dtype=TYPES[options.dtype]).uniform_(-1, 1)
    weight = torch.full((tokens, topk), 1 / topk, device='cuda')
    order, sent, received, by_expert, _ = plan(index, ranks, experts)
    back, inverse = torch.argsort(by_expert), torch.argsort(order)
    packed, arrived = x[order // topk], x.new_empty(sum(received), hidden)

    def all_to_all():
        dist.all_to_all_single(arrived, packed, received, sent)

    def dispatch():
        dist.all_to_all_single(arrived, x[order // topk], received, sent)
        return arrived[by_expert]

    experts_rows = dispatch()

    def combine():
        dist.all_to_all_single(packed, experts_rows[back], sent, received)
        return (packed[inverse].view(tokens, topk, -1) * weight[..., None].to(x.dtype)).sum(1)

    same = right(torch.allclose(combine().float(), x.float(), rtol=0.02, atol=0.02))
    size = x.element_size() * hidden
    bytes_of = size * (sum(sent) - (sent[rank] if ranks > 1 else 0))
    total = torch.tensor([float(bytes_of)], device='cuda', dtype=torch.float64)
    dist.all_reduce(total)
    for name, call in (('all_to_all', all_to_all), ('dispatch', dispatch), ('combine', combine)):
        us = seconds(call) * 1e6
        row = {'op': name, 'engine': f'torch {torch.__version__}, NCCL', 'ranks': ranks, 'T': tokens, 'H': hidden, 'K': topk,
               'E': experts, 'dtype': options.dtype, 'skew': skew, 'bytes': total.item() / ranks, 'us': us,
               'gbps': total.item() / ranks / us * 1e-3, 'wrong': 0 if same else 1}
        show(rank, rows, row, f"{name:10} NCCL {ranks} T {tokens} H {hidden} K {topk} {options.dtype} {skew}"
                              f" {us:10.1f} us {row['gbps']:8.1f} GB/s {'right' if same else 'WRONG'}")


class AllToAll(torch.autograd.Function):
    @staticmethod
    def forward(context, x, sent, received):
        context.sizes = sent, received
        y = x.new_empty(sum(received), x.shape[1])
        dist.all_to_all_single(y, x.contiguous(), received, sent)
        return y

    @staticmethod
    def backward(context, dy):
        sent, received = context.sizes
        dx = dy.new_empty(sum(sent), dy.shape[1])
        dist.all_to_all_single(dx, dy.contiguous(), sent, received)
        return dx, None, None


def route(x, router, topk):
    weight, index = functional.linear(x, router).softmax(-1, dtype=torch.float32).topk(topk, -1)
    return weight / weight.sum(-1, keepdim=True), index


def layer(x, router, gate_up, down, topk, ranks):
    weight, index = route(x, router, topk)
    order, sent, received, by_expert, ends = plan(index, ranks, router.shape[0])
    rows = AllToAll.apply(x[order // topk], sent, received)
    gate, up = torch._grouped_mm(rows[by_expert], gate_up.transpose(-2, -1), offs=ends).chunk(2, -1)
    out = torch._grouped_mm(functional.silu(gate) * up, down.transpose(-2, -1), offs=ends)
    out = AllToAll.apply(out[torch.argsort(by_expert)], received, sent)[torch.argsort(order)]
    return (out.view(*index.shape, -1) * weight[..., None].to(out.dtype)).sum(1)


def gathered(weight, ranks):
    every = [torch.empty_like(weight) for _ in range(ranks)]
    dist.all_gather(every, weight.detach())
    return torch.cat(every)


def is_right(y, x, router, gate_up, down, topk, ranks, tokens=4):
    """Compares the first tokens with a loop over their experts."""
    weight, index = route(x, router, topk)
    gate_up, down, ok = gathered(gate_up, ranks), gathered(down, ranks), True
    for t in range(tokens):
        want = 0
        for factor, e in zip(weight[t], index[t].tolist()):
            gate, up = (gate_up[e].float() @ x[t].float()).chunk(2)
            want = want + factor * (down[e].float() @ (functional.silu(gate) * up))
        ok = ok and (y[t].float() - want).abs().max() <= 0.03 * want.abs().max()
    return right(ok)


def layers(rank, ranks, name, options, rows):
    hidden, intermediate, experts, topk = MODELS[name]
    local, tokens = experts // ranks, options.tokens
    torch.manual_seed(rank)

    def normal(*shape, scale=1.0):
        return torch.randn(*shape, device='cuda', dtype=torch.bfloat16).mul_(scale)

    x, dy = normal(tokens, hidden).requires_grad_(), normal(tokens, hidden)
    gate_up = normal(local, 2 * intermediate, hidden, scale=0.02).requires_grad_()
    down = normal(local, hidden, intermediate, scale=0.02).requires_grad_()
    torch.manual_seed(ranks)
    router = normal(experts, hidden, scale=0.02).requires_grad_()

    def forward():
        with torch.no_grad():
            return layer(x, router, gate_up, down, topk, ranks)

    def forward_backward():
        layer(x, router, gate_up, down, topk, ranks).backward(dy)
        x.grad = router.grad = gate_up.grad = down.grad = None

    ok = is_right(forward(), x.detach(), router.detach(), gate_up, down, topk, ranks)
    for op, call, passes in (('forward', forward, 1), ('forward+backward', forward_backward, 3)):
        took = seconds(call)
        flops = passes * 6 * tokens * topk * hidden * intermediate
        row = {'op': op, 'engine': f'torch {torch.__version__}, NCCL', 'model': name, 'ranks': ranks, 'T': tokens, 'H': hidden,
               'I': intermediate, 'E': experts, 'K': topk, 'precision': 'bf16', 'ms': took * 1e3, 'tokens_per_s': tokens * ranks / took,
               'gflops': flops / took * 1e-9, 'wrong': not ok}
        show(rank, rows, row, f"{op:17} {name:12} torch {ranks} {took * 1e3:10.3f} ms {row['tokens_per_s']:12.0f} tokens/s "
                              f"{row['gflops'] * 1e-3:8.1f} TFLOP/s {'right' if ok else 'WRONG'}")


def _rank(rank, ranks, options):
    os.environ.update(MASTER_ADDR='127.0.0.1', MASTER_PORT='29512')
    torch.cuda.set_device(rank)
    dist.init_process_group('nccl', rank=rank, world_size=ranks, device_id=torch.device('cuda', rank))
    rows = []
    for work, cases in ((exchange, options.exchange), (layers, options.model)):
        for case in cases:
            work(rank, ranks, case, options, rows)
            torch.cuda.empty_cache()
    if rank == 0 and options.json:
        with open(options.json, 'w') as file:
            json.dump(rows, file, indent=1)
    wrong = any(row['wrong'] for row in rows)
    dist.destroy_process_group()
    if wrong:
        raise SystemExit(1)


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, standard in (('ranks', torch.cuda.device_count()), ('tokens', 8192), ('topk', 8), ('experts', 128)):
        parser.add_argument('--' + name, type=int, default=standard)
    parser.add_argument('--exchange', nargs='*', default=[])
    parser.add_argument('--model', nargs='*', default=[], choices=MODELS)
    parser.add_argument('--dtype', choices=TYPES, default='bf16')
    parser.add_argument('--json')
    options = parser.parse_args()
    multiprocessing.spawn(_rank, args=(options.ranks, options), nprocs=options.ranks)


if __name__ == '__main__':
    main()

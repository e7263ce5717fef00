#!/usr/bin/env python3
"""NCCL's all-to-all as a rival of bench_exchange: rows of every slot to the rank of its expert, and back.

  torch_all_to_all.py --ranks R [--tokens T] [--hidden H] [--topk K] [--experts E] [--dtype bf16|f32] [--skew S] [--json FILE]

all_to_all is the message alone, of rows that lie packed; dispatch also packs them and sorts what arrives by expert, combine
goes back and sums every token's rows by weight. Counts are known before. GB/s count the rows for other ranks, as in bench_exchange.
"""
import argparse

import torch
import torch.distributed as dist

import torch_ranks

TYPES = {'bf16': torch.bfloat16, 'f32': torch.float32}


def work(rank, ranks, options, rows):
    tokens, topk, experts = options.tokens, options.topk, options.experts
    local = experts // ranks
    index = torch_ranks.routing(options.skew, tokens * ranks, topk, experts, 1)[rank * tokens:(rank + 1) * tokens]
    x = torch.empty(tokens, options.hidden, device='cuda', dtype=TYPES[options.dtype]).uniform_(-1, 1)
    weight = torch.full((tokens, topk), 1 / topk, device='cuda')
    order = torch.argsort(index.reshape(-1), stable=True)
    counts = torch.bincount(index.reshape(-1), minlength=experts)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    arriving = arriving.view(ranks, local)
    sent, received = counts.view(ranks, local).sum(1).tolist(), arriving.sum(1).tolist()
    by_expert = torch.argsort(torch.arange(local, device='cuda').repeat(ranks).repeat_interleave(arriving.reshape(-1)), stable=True)
    back, inverse = torch.argsort(by_expert), torch.argsort(order)
    packed, arrived = x[order // topk], x.new_empty(sum(received), options.hidden)

    def all_to_all():
        dist.all_to_all_single(arrived, packed, received, sent)

    def dispatch():
        dist.all_to_all_single(arrived, x[order // topk], received, sent)
        return arrived[by_expert]

    experts_rows = dispatch()

    def combine():
        dist.all_to_all_single(packed, experts_rows[back], sent, received)
        return (packed[inverse].view(tokens, topk, -1) * weight[..., None].to(x.dtype)).sum(1)

    same = torch_ranks.right(torch.allclose(combine().float(), x.float(), rtol=0.02, atol=0.02))
    size = x.element_size() * options.hidden
    bytes_of = size * (sum(sent) - (sent[rank] if ranks > 1 else 0))
    total = torch.tensor([float(bytes_of)], device='cuda', dtype=torch.float64)
    dist.all_reduce(total)
    for name, call in (('all_to_all', all_to_all), ('dispatch', dispatch), ('combine', combine)):
        us = torch_ranks.seconds(call) * 1e6
        row = {'op': name, 'engine': f'torch {torch.__version__}, NCCL', 'ranks': ranks, 'T': tokens, 'H': options.hidden, 'K': topk,
               'E': experts, 'dtype': options.dtype, 'skew': options.skew, 'bytes': total.item() / ranks, 'us': us,
               'gbps': total.item() / ranks / us * 1e-3, 'wrong': 0 if same else 1}
        torch_ranks.show(rank, rows, row, f"{name:10} NCCL {ranks} T {tokens} H {options.hidden} K {topk} {options.dtype} {options.skew}"
                                          f" {us:10.1f} us {row['gbps']:8.1f} GB/s {'right' if same else 'WRONG'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    for name, standard in (('ranks', torch.cuda.device_count()), ('tokens', 8192), ('hidden', 2048), ('topk', 8), ('experts', 128)):
        parser.add_argument('--' + name, type=int, default=standard)
    parser.add_argument('--dtype', choices=TYPES, default='bf16')
    parser.add_argument('--skew', choices=('balanced', 'zipf', 'hot'), default='balanced')
    parser.add_argument('--json')
    torch_ranks.run(work, parser.parse_args())


if __name__ == '__main__':
    main()

#!/usr/bin/env python3
"""An expert-parallel MoE layer of PyTorch as a rival of bench_layer: NCCL's all-to-all, torch._grouped_mm, SwiGLU, in bf16.

  torch_moe_layer.py --ranks R [--model NAME...] [--tokens T] [--json FILE]

The router is that of transformers' Qwen3-MoE: a linear layer, softmax in float32, the K highest, normalised. Backward gives the gradients
of x and of all weights.
The first tokens of every rank are compared with a loop over their experts in float32.
"""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as functional

import torch_ranks

MODELS = {'qwen3-30b': (2048, 768, 128, 8), 'olmoe': (2048, 1024, 64, 8), 'deepseek-v3': (7168, 2048, 256, 8),
          'mixtral-8x7b': (4096, 14336, 8, 2)}


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
    experts = router.shape[0]
    local = experts // ranks
    weight, index = route(x, router, topk)
    order = torch.argsort(index.reshape(-1), stable=True)
    counts = torch.bincount(index.reshape(-1), minlength=experts)
    arriving = torch.empty_like(counts)
    dist.all_to_all_single(arriving, counts)
    sent, arriving = counts.view(ranks, local).sum(1).tolist(), arriving.view(ranks, local)
    received = arriving.sum(1).tolist()
    rows = AllToAll.apply(x[order // topk], sent, received)
    owner = torch.arange(local, device=x.device).repeat(ranks).repeat_interleave(arriving.reshape(-1))
    by_expert = torch.argsort(owner, stable=True)
    ends = arriving.sum(0).cumsum(0).to(torch.int32)
    gate, up = torch._grouped_mm(rows[by_expert], gate_up.transpose(-2, -1), offs=ends).chunk(2, -1)
    out = torch._grouped_mm(functional.silu(gate) * up, down.transpose(-2, -1), offs=ends)
    out = AllToAll.apply(out[torch.argsort(by_expert)], received, sent)[torch.argsort(order)]
    return (out.view(*index.shape, -1) * weight[..., None].to(out.dtype)).sum(1)


def gathered(weight, ranks):
    every = [torch.empty_like(weight) for _ in range(ranks)]
    dist.all_gather(every, weight.detach())
    return torch.cat(every)


def is_right(y, x, router, gate_up, down, topk, ranks, tokens=4):
    """The first tokens, one expert after the other."""
    weight, index = route(x, router, topk)
    gate_up, down, ok = gathered(gate_up, ranks), gathered(down, ranks), True
    for t in range(tokens):
        want = 0
        for share, e in zip(weight[t], index[t].tolist()):
            gate, up = (gate_up[e].float() @ x[t].float()).chunk(2)
            want = want + share * (down[e].float() @ (functional.silu(gate) * up))
        ok = ok and (y[t].float() - want).abs().max() <= 0.03 * want.abs().max()
    return torch_ranks.right(ok)


def work(rank, ranks, options, rows):
    for name in options.model:
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
        for op, call, products in (('forward', forward, 1), ('forward+backward', forward_backward, 3)):
            took = torch_ranks.seconds(call)
            flops = products * 6 * tokens * topk * hidden * intermediate
            row = {'op': op, 'engine': f'torch {torch.__version__}, NCCL', 'model': name, 'ranks': ranks, 'T': tokens, 'H': hidden,
                   'I': intermediate, 'E': experts, 'K': topk, 'precision': 'bf16', 'ms': took * 1e3, 'tokens_per_s': tokens * ranks / took,
                   'gflops': flops / took * 1e-9, 'wrong': not ok}
            torch_ranks.show(rank, rows, row, f"{op:17} {name:12} torch {ranks} {took * 1e3:10.3f} ms {row['tokens_per_s']:12.0f} tokens/s "
                                              f"{row['gflops'] * 1e-3:8.1f} TFLOP/s {'right' if ok else 'WRONG'}")
        del x, dy, router, gate_up, down


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('--ranks', type=int, default=torch.cuda.device_count())
    parser.add_argument('--model', nargs='+', choices=MODELS, default=list(MODELS))
    parser.add_argument('--tokens', type=int, default=8192)
    parser.add_argument('--json')
    torch_ranks.run(work, parser.parse_args())


if __name__ == '__main__':
    main()

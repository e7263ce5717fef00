"""Experts of one's own in torch, over moert's exchange: mpirun -n 2 --bind-to none python3 own_experts.py

Every rank has a part of the tokens, and of the experts. The printed loss is the same on any number of ranks.
"""
import moert.torch
import torch

T, H, E, K = 64, 32, 8, 2

context = moert.Context()
generator = torch.Generator().manual_seed(1)
x = torch.randn(T, H, generator=generator).tensor_split(context.size)[context.rank]
router = torch.nn.Parameter(torch.randn(E, H, generator=generator))
scale = torch.nn.Parameter(torch.randn(E, H, generator=generator))  # expert e: relu(row * scale[e])

weight, index = torch.softmax(x @ router.T, -1).topk(K)
exchange = moert.torch.Exchange(index, E, context)
rows, row_weight = exchange.dispatch(x, weight)
counts = torch.diff(exchange.ends, prepend=torch.zeros(1, dtype=torch.int64))
expert = exchange.first_expert + torch.repeat_interleave(torch.arange(len(counts)), counts)
y = exchange.combine(torch.relu(rows * scale[expert]) * row_weight[:, None])

loss = y.square().sum()
loss.backward()
total = sum(context.gather(loss.item()))
slope = sum(context.gather(scale.grad.square().sum(1).sqrt().sum().item()))
if context.rank == 0:
    print(f"loss {total:.2f}, gradients {slope:.2f}")

"""Data-parallel training in torch with expert parallelism: mpirun -n 2 --bind-to none python3 data_parallel.py

Every rank has its own sequences and its own experts. The printed losses are the same on any number of ranks that divides 8.
"""
import moert.torch
import torch

SEQUENCES, LENGTH, H = 8, 32, 64

context = moert.Context()
generator = torch.Generator().manual_seed(1)
target = torch.randn(H, H, generator=generator) / H ** 0.5
layer = moert.torch.MoELayer(H, 128, experts=8, topk=2, seed=1, deviation=0.1, context=context)
optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-2)  # updates this rank's experts, and the router, which is the same on all ranks

for step in range(20):
    batch = torch.randn(SEQUENCES, LENGTH, H, generator=generator)
    x = batch.tensor_split(context.size)[context.rank]
    loss = (layer(x) - x @ target).square().sum() / (SEQUENCES * LENGTH * H)  # the ranks' losses sum up to the mean
    optimizer.zero_grad()
    loss.backward()  # computes the gradients of the sum of all ranks' losses
    optimizer.step()
    total = sum(context.gather(loss.item()))
    if context.rank == 0 and (step == 0 or step == 19):
        print(f"step {step}: loss {total:.4f}")

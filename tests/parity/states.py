"""Compares a step with bf16 moments and gradients with that of torch and the same rounding.

  tests/parity/states.py adamw|sgd BEFORE AFTER GRADIENTS METRICS

BEFORE and AFTER are the checkpoints around a step, of a run with weight decay 0.1 on matrices, betas 0.9 and 0.95 or momentum 0.9, and clipping to 1;
GRADIENTS has the step's gradients, before clipping, and METRICS its learning rate and norm. Weights must agree within float32's
rounding. Moments must be torch's, rounded by the random bits that docs/design.md describes; a few may be the next bf16 number, since
torch computes them in another order. Where old moment and gradient cancel, a moment may differ by float32's rounding of these.
"""
import json
import sys

import numpy
import torch
from safetensors.torch import load_file

MASK = (1 << 64) - 1
# torch's names of the states, by their prefixes in checkpoints
STATES = {"adamw": {"first_moment.": "exp_avg", "second_moment.": "exp_avg_sq"}, "sgd": {"momentum.": "momentum_buffer"}}


def philox(key, high, low):
    k = [key & 0xFFFFFFFF, key >> 32]
    c = [low & 0xFFFFFFFF, low >> 32, high & 0xFFFFFFFF, high >> 32]
    for _ in range(10):
        first, second = 0xD2511F53 * c[0], 0xCD9E8D57 * c[2]
        c = [second >> 32 ^ c[1] ^ k[0], second & 0xFFFFFFFF, first >> 32 ^ c[3] ^ k[1], first & 0xFFFFFFFF]
        k = [(k[0] + 0x9E3779B9) & 0xFFFFFFFF, (k[1] + 0xBB67AE85) & 0xFFFFFFFF]
    return c


def key_of(name):
    stream = 0xCBF29CE484222325
    for byte in name.encode():
        stream = (stream ^ byte) * 0x100000001B3 & MASK
    words = philox(stream, 0, 0)
    return words[0], words[1]


def mix(x):
    x = (x ^ x >> 16) * numpy.uint32(0x7FEB352D)
    x = (x ^ x >> 15) * numpy.uint32(0x846CA68B)
    return x ^ x >> 16


def random_bits(name, step, count):
    low, high = (numpy.uint32(a ^ b) for a, b in zip(key_of(name), philox(step, 0, 0)))
    return mix(mix(numpy.arange(count, dtype=numpy.uint32) ^ low) + high)


def rounded(x, bits):
    return ((x.numpy().ravel().view(numpy.uint32) + bits) >> 16).astype(numpy.int64)


def code(x):
    return x.view(torch.uint16).numpy().ravel().astype(numpy.int64)


def value(codes):
    return (codes << 16).astype(numpy.uint32).view(numpy.float32).astype(numpy.float64)


def main():
    optimizer, before, after, gradients, metrics = sys.argv[1:]
    weights, moments = load_file(f"{before}/model.safetensors"), load_file(f"{before}/optimizer.safetensors")
    want_weights, want = load_file(f"{after}/model.safetensors"), load_file(f"{after}/optimizer.safetensors")
    with open(f"{after}/state.json") as file:
        step = json.load(file)["step"]
    with open(metrics) as file:
        row = next(row for row in map(json.loads, file) if row["step"] == step - 1)
    scale = min(1.0, 1.0 / (row["grad_norm"] + 1e-6))
    near = total = 0
    worst = 0.0
    for name, gradient in ((name.removeprefix("grad."), x) for name, x in load_file(gradients).items()):
        parameter = torch.nn.Parameter(weights[name].clone())
        parameter.grad = gradient * numpy.float32(scale).item()
        decay = 0.1 if parameter.dim() > 1 else 0.0
        if optimizer == "adamw":
            made = torch.optim.AdamW([parameter], lr=row["lr"], betas=(0.9, 0.95), eps=1e-8, weight_decay=decay, foreach=False)
        else:
            made = torch.optim.SGD([parameter], lr=row["lr"], momentum=0.9, weight_decay=decay, foreach=False)
        state = {prefix: moments[prefix + name].float() for prefix in STATES[optimizer]}
        made.state[parameter] = {"step": torch.tensor(float(step - 1))} | {STATES[optimizer][prefix]: x for prefix, x in state.items()}
        made.step()
        worst = max(worst, (parameter.detach() - want_weights[name]).abs().max().item() / row["lr"])
        bits = random_bits(name, step, parameter.numel())
        for (prefix, x), random in zip(state.items(), (bits & 0xFFFF, bits >> 16)):
            computed, stored = rounded(x, random), code(want[prefix + name])
            off = numpy.abs(computed - stored)
            apart = numpy.abs(value(computed) - value(stored))
            bad = (off > 1) & (apart > 2.0**-22 * numpy.abs(moments[prefix + name].double().numpy().ravel()))
            assert not bad.any(), (name, prefix, off[bad])
            near += int((off > 0).sum())
            total += off.size
    print(f"step {step}: weights differ by {worst:.1e} of the learning rate; {near} of {total} moments are the next bf16 number")
    sys.exit(not (total > 0 and near < total / 1000 and worst < 1e-3))


if __name__ == "__main__":
    main()

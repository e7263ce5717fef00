#!/usr/bin/env python3
"""moert-train's model and step in PyTorch, as fast as we could make them; bench/run-cpu and bench/run-h200 call it.

    torch_train.py make-data FILE --steps N --batch B --length S --vocabulary V     a token file for moert-train --tokens
    torch_train.py train --model DIR --tokens FILE --metrics FILE [OPTION...]       JSON lines like moert-train's
    torch_train.py about                                                            version and CPU features in use

The model is read from the directory that moert-train writes (Mixtral form) and trains on the same batches with moert-train's
defaults: AdamW that decays matrices only, clipping, cosine after a warm-up, Hugging Face's balancing loss. Experts in three forms:

    index    as in transformers: for each expert, index its tokens, two GEMMs, index_add
    sorted   slots sorted by expert, two GEMMs for each expert on contiguous rows, rows gathered back
    grouped  the same with torch.nn.functional.grouped_mm over all experts

--experts transformers runs a Qwen3-MoE model of that library in bf16, on a GPU if there is one (torch_transformers.py). Only this
form needs more than torch.

--linear onednn computes float32 GEMMs by oneDNN, through an operator that PyTorch has for compiled inference, instead of by the BLAS
that PyTorch was built with. It is up to twice as fast on processors whose AVX-512 that BLAS does not use.
"""
import argparse
import array
import importlib.metadata
import json
import math
import os
import re
import struct
import sys
import time
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

import torch_transformers


def read_safetensors(path):
    data = bytearray(Path(path).read_bytes())
    (size,) = struct.unpack_from("<Q", data)
    dtypes = {"F32": torch.float32, "I32": torch.int32}
    tensors = {}
    for name, entry in json.loads(data[8 : 8 + size]).items():
        if name != "__metadata__":
            count = math.prod(entry["shape"])
            at = 8 + size + entry["data_offsets"][0]
            tensors[name] = torch.frombuffer(data, dtype=dtypes[entry["dtype"]], count=count, offset=at).view(entry["shape"])
    return tensors


def make_data(args):
    """Draws tokens with frequencies ~ 1 / rank, so that the model can learn and experts get unequal loads."""
    generator = torch.Generator().manual_seed(args.seed)
    frequency = 1.0 / (torch.arange(args.vocabulary) + 3.0)
    shape = (args.steps, args.batch, args.length + 1)
    tokens = torch.multinomial(frequency, math.prod(shape), replacement=True, generator=generator).to(torch.int32)
    entry = {"dtype": "I32", "shape": shape, "data_offsets": [0, 4 * tokens.numel()]}
    header = json.dumps({"tokens": entry}).encode()
    header += b" " * (-len(header) % 8)
    Path(args.file).write_bytes(struct.pack("<Q", len(header)) + header + array.array("i", tokens.tolist()).tobytes())


class OneDnn(torch.autograd.Function):
    """x[M,K] weight[N,K]^T, with forward, dgrad and wgrad by oneDNN."""

    @staticmethod
    def gemm(x, weight):
        return torch.ops.mkldnn._linear_pointwise(x, weight, None, "none", [], "")

    @staticmethod
    def forward(ctx, x, weight):
        ctx.save_for_backward(x, weight)
        return OneDnn.gemm(x, weight)

    @staticmethod
    def backward(ctx, dy):
        x, weight = ctx.saved_tensors
        return OneDnn.gemm(dy, weight.t()), OneDnn.gemm(dy.t(), x.t())


class Dispatch(torch.autograd.Function):
    """x[T,H] -> a row for every slot, ordered by expert. The gradient is also a gather; index_select's would scatter."""

    @staticmethod
    def forward(ctx, x, order, inverse, topk):
        ctx.save_for_backward(inverse)
        ctx.topk = topk
        return x.index_select(0, order // topk)

    @staticmethod
    def backward(ctx, dy):
        (inverse,) = ctx.saved_tensors
        return dy.index_select(0, inverse).view(-1, ctx.topk, dy.shape[1]).sum(1), None, None, None


class Restore(torch.autograd.Function):
    """Reorders rows from experts to slots."""

    @staticmethod
    def forward(ctx, y, order, inverse):
        ctx.save_for_backward(order)
        return y.index_select(0, inverse)

    @staticmethod
    def backward(ctx, dy):
        (order,) = ctx.saved_tensors
        return dy.index_select(0, order), None, None


def swiglu(gate_up):
    gate, up = gate_up.chunk(2, dim=-1)
    return F.silu(gate) * up


def rotate(x, cos, sin):
    half = x.shape[-1] // 2
    return x * cos + torch.cat((-x[..., half:], x[..., :half]), dim=-1) * sin


class Layer(nn.Module):
    def __init__(self, config, form, linear, tensors, prefix):
        super().__init__()
        take = lambda *names: nn.Parameter(torch.cat([tensors[prefix + name + ".weight"] for name in names]))
        self.config, self.form, self.linear = config, form, linear
        self.input_norm, self.post_norm = take("input_layernorm"), take("post_attention_layernorm")
        self.qkv = take(*(f"self_attn.{c}_proj" for c in "qkv"))
        self.out, self.gate = take("self_attn.o_proj"), take("block_sparse_moe.gate")
        experts = [f"block_sparse_moe.experts.{e}.w" for e in range(config["num_local_experts"])]
        gate_up = [take(e + "1", e + "3") for e in experts]
        down = [take(e + "2") for e in experts]
        if form == "grouped":
            self.gate_up, self.down = nn.Parameter(torch.stack(gate_up)), nn.Parameter(torch.stack(down))
        else:  # a parameter for each expert: each slice of a stacked one would get a gradient of the whole size
            self.gate_up, self.down = nn.ParameterList(gate_up), nn.ParameterList(down)
        self.swiglu = swiglu

    def attend(self, x, cos, sin):
        c = self.config
        heads, kv, size = c["num_attention_heads"], c["num_key_value_heads"], c["head_dim"]
        batch, length = x.shape[:2]
        normed = F.rms_norm(x, x.shape[-1:], self.input_norm, c["rms_norm_eps"])
        qkv = self.linear(normed.view(batch * length, -1), self.qkv).view(batch, length, heads + 2 * kv, size).transpose(1, 2)
        q, k, v = qkv.split((heads, kv, kv), dim=1)
        q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=heads != kv)
        mixed = mixed.transpose(1, 2).reshape(batch * length, heads * size)
        return x + self.linear(mixed, self.out).view(x.shape)

    def route(self, x):
        normed = F.rms_norm(x, x.shape[-1:], self.post_norm, self.config["rms_norm_eps"]).flatten(0, 1)
        scores = self.linear(normed, self.gate).float().softmax(dim=-1)
        weight, index = scores.topk(self.config["num_experts_per_tok"], dim=-1)
        return normed, scores, index, weight / weight.sum(dim=-1, keepdim=True)

    def expert(self, x, e):
        return self.linear(self.swiglu(self.linear(x, self.gate_up[e])), self.down[e])

    def mix_indexed(self, x, index, weight):
        y = torch.zeros_like(x)
        slots = F.one_hot(index, self.config["num_local_experts"]).permute(2, 1, 0)
        for e in slots.sum(dim=(1, 2)).nonzero().flatten().tolist():
            k, token = torch.where(slots[e])
            y.index_add_(0, token, (self.expert(x[token], e) * weight[token, k, None]).to(y.dtype))
        return y

    def mix_sorted(self, x, index, weight):
        topk = index.shape[1]
        flat = index.flatten()
        order = flat.argsort(stable=True)
        inverse = torch.empty_like(order).scatter_(0, order, torch.arange(order.numel()))
        counts = flat.bincount(minlength=self.config["num_local_experts"])
        rows = Dispatch.apply(x, order, inverse, topk)
        if self.form == "grouped":
            ends = counts.cumsum(0).to(torch.int32)
            hidden = self.swiglu(F.grouped_mm(rows, self.gate_up.transpose(1, 2), offs=ends))
            y = F.grouped_mm(hidden, self.down.transpose(1, 2), offs=ends)
        else:
            y = torch.cat([self.expert(part, e) for e, part in enumerate(rows.split(counts.tolist())) if len(part) > 0])
        y = Restore.apply(y, order, inverse).view(-1, topk, x.shape[1])
        return (y * weight.unsqueeze(-1)).sum(1)

    def forward(self, x, cos, sin):
        x = self.attend(x, cos, sin)
        normed, scores, index, weight = self.route(x)
        y = (self.mix_indexed if self.form == "index" else self.mix_sorted)(normed, index, weight)
        return x + y.view(x.shape), scores, index


class Model(nn.Module):
    def __init__(self, directory, form, linear):
        super().__init__()
        self.config = config = json.loads((Path(directory) / "config.json").read_text())
        if config["model_type"] != "mixtral":
            sys.exit(f"torch_train.py: {directory}: a {config['model_type']} model; expected mixtral")
        tensors = {}
        for path in sorted(Path(directory).glob("*.safetensors")):
            tensors.update(read_safetensors(path))
        self.linear = linear
        self.embed = nn.Parameter(tensors["model.embed_tokens.weight"].clone())
        self.norm = nn.Parameter(tensors["model.norm.weight"].clone())
        self.head = nn.Parameter(tensors["lm_head.weight"].clone())
        layers = range(config["num_hidden_layers"])
        self.layers = nn.ModuleList(Layer(config, form, linear, tensors, f"model.layers.{i}.") for i in layers)

    def angles(self, length):
        size, theta = self.config["head_dim"], self.config["rope_parameters"]["rope_theta"]
        frequency = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)
        angle = torch.outer(torch.arange(length, dtype=torch.float64), frequency).repeat(1, 2)
        return angle.cos().float(), angle.sin().float()

    def cross_entropy(self, x, targets):
        normed = F.rms_norm(x, x.shape[-1:], self.norm, self.config["rms_norm_eps"]).flatten(0, 1)
        return F.cross_entropy(self.linear(normed, self.head).float(), targets.flatten())

    def forward(self, inputs, targets, cos, sin):
        """The cross-entropy, and the balancing loss over the rows of all layers together."""
        x = F.embedding(inputs, self.embed)
        mass = counts = rows = 0
        for layer in self.layers:
            x, scores, index = layer(x, cos, sin)
            mass = mass + scores.sum(0)
            counts = counts + index.flatten().bincount(minlength=scores.shape[1])
            rows += scores.shape[0]
        return self.cross_entropy(x, targets), scores.shape[1] / rows**2 * (counts * mass).sum()


def compile_parts(model):
    """Compiles all but the experts' GEMMs, whose numbers of rows change with every call."""
    for layer in model.layers:
        layer.attend, layer.route = torch.compile(layer.attend, dynamic=False), torch.compile(layer.route, dynamic=False)
        layer.swiglu = torch.compile(swiglu, dynamic=True)
    model.cross_entropy = torch.compile(model.cross_entropy, dynamic=False)


def rate_of(args, step, total):
    """moert-train's schedule."""
    if step < args.warmup:
        return args.lr * (step + 1) / args.warmup
    progress = (step - args.warmup) / (total - args.warmup)
    return args.lr * (args.lr_floor + (1 - args.lr_floor) * 0.5 * (1 + math.cos(math.pi * progress)))


def make_loss(args, length):
    """The model, and its losses as a function of inputs and targets."""
    if args.experts == "transformers":
        model = torch_transformers.load(args.model)
        return model, torch.compile(model, dynamic=False) if args.compile else model
    model = Model(args.model, args.experts, OneDnn.apply if args.linear == "onednn" else F.linear)
    if args.compile:
        compile_parts(model)
    cos, sin = model.angles(length)
    return model, lambda inputs, targets: model(inputs, targets, cos, sin)


def timestamp(device):
    """The current time; on a GPU an event in its stream, so that the host need not wait."""
    if device.type == "cpu":
        return time.perf_counter(), time.process_time()
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def rate_between(start, end, tokens):
    if not isinstance(start, tuple):
        end.synchronize()
        return {"tokens_per_s": tokens / (start.elapsed_time(end) * 1e-3)}
    seconds, used = end[0] - start[0], end[1] - start[1]
    return {"tokens_per_s": tokens / seconds, "cores": used / seconds}


def train(args):
    torch.set_num_threads(args.threads)
    tokens = read_safetensors(args.tokens)["tokens"].long()
    total = min(args.steps or len(tokens), len(tokens))
    model, losses = make_loss(args, tokens.shape[2] - 1)
    device = next(model.parameters()).device
    tokens = tokens.to(device)
    matrices = [p for p in model.parameters() if p.dim() > 1]
    others = [p for p in model.parameters() if p.dim() == 1]
    groups = [{"params": matrices, "weight_decay": args.weight_decay}, {"params": others, "weight_decay": 0.0}]
    adamw = torch.optim.AdamW(groups, betas=(args.beta1, args.beta2), eps=args.epsilon, fused=True)
    results, times = [], [timestamp(device)]
    for step in range(total):
        for group in adamw.param_groups:
            group["lr"] = rate_of(args, step, total)
        sums = torch.zeros(2, device=device)
        for part in tokens[step].chunk(args.micro_batches):
            with torch.autocast("cpu", torch.bfloat16, enabled=args.dtype == "bf16" and device.type == "cpu"):
                loss, aux = losses(part[:, :-1], part[:, 1:])
            ((loss + args.aux_coef * aux) / args.micro_batches).backward()
            sums += torch.stack((loss.detach(), aux.detach())).float() / args.micro_batches
        norm = nn.utils.clip_grad_norm_(model.parameters(), args.grad_clip, foreach=True)
        adamw.step()
        adamw.zero_grad()
        results.append({"loss": sums[0], "aux_loss": sums[1], "grad_norm": norm})
        times.append(timestamp(device))
    with open(args.metrics, "w") as file:
        for step, result in enumerate(results):
            row = {"step": step} | {key: value.item() for key, value in result.items()}
            print(json.dumps(row | rate_between(*times[step : step + 2], tokens[step, :, 1:].numel())), file=file)
    if device.type == "cuda":
        print(f"peak of the allocated memory: {torch.cuda.max_memory_allocated() / 2**20:.0f} MiB")


def about(args):
    if torch.cuda.is_available():
        print(f"PyTorch {torch.__version__}, transformers {importlib.metadata.version('transformers')}")
        return
    version = re.search(r"Math Kernel Library Version \S+|OpenBLAS[^\n,]*", torch.__config__.show())
    print(f"PyTorch {torch.__version__}, {torch.backends.cpu.get_cpu_capability()}, {version.group(0) if version else 'BLAS unknown'}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    data = commands.add_parser("make-data")
    data.set_defaults(run=make_data)
    data.add_argument("file")
    for name, default in (("steps", 12), ("batch", 8), ("length", 512), ("vocabulary", 256), ("seed", 1)):
        data.add_argument(f"--{name}", type=int, default=default)
    run = commands.add_parser("train")
    run.set_defaults(run=train)
    for name in ("model", "tokens", "metrics"):
        run.add_argument(f"--{name}", required=True)
    run.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    run.add_argument("--steps", type=int, default=0, help="0 = all batches of the file")
    run.add_argument("--micro-batches", type=int, default=1)
    run.add_argument("--experts", choices=("index", "sorted", "grouped", "transformers"), default="sorted")
    run.add_argument("--linear", choices=("blas", "onednn"), default="blas")
    run.add_argument("--dtype", choices=("f32", "bf16"), default="f32", help="bf16: autocast; transformers: always bf16")
    run.add_argument("--compile", action="store_true", help="torch.compile all but the experts' GEMMs (transformers: all); needs a C++ compiler")
    hyper = {"lr": 1e-3, "lr-floor": 0.1, "weight-decay": 0.1, "beta1": 0.9, "beta2": 0.95, "epsilon": 1e-8, "grad-clip": 1.0}
    for name, default in (hyper | {"aux-coef": 0.01}).items():
        run.add_argument(f"--{name}", type=float, default=default)
    run.add_argument("--warmup", type=int, default=0)
    commands.add_parser("about").set_defaults(run=about)
    args, sizes = parser.parse_known_args()  # make-data is given all sizes of a model
    if sizes and args.run is train:
        run.error(f"unknown arguments: {' '.join(sizes)}")
    args.run(args)


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Trains released models whole, with random weights and tokens, all in bf16, a rank on each GPU, and measures the steps.

  models.py --ranks R [--only olmoe gpt-oss qwen3-moe] [--routing balanced natural] [--steps 30] [--length 4096] [--sequences 8]
      [--peak-tflops 989] [--mpirun "mpirun ..."] [--set KEY=N...] [--title TEXT] [--json FILE]

A step has --sequences for each rank. moert-info says which settings fit: the first of CHOICES is used. Each model trains with balanced
and with natural routing, for which more rows must fit; the medians are of the second half of the steps. Every loss must be finite. Where
R / 2 ranks fit too, three steps must have the losses of R ranks in every digit. --set replaces numbers of the config.json, for trials of
this program.
"""
import argparse
import json
import math
import random
import re
import shlex
import statistics
import subprocess
import sys
import tempfile
import time
from array import array
from pathlib import Path

from fits import MODELS, TYPES, write_config

FORMS = {"OLMoE-1B-7B": "olmoe", "gpt-oss-20b": "gpt-oss", "Qwen3-30B-A3B": "qwen3-moe"}
# sequences of a rank and micro-batch, --recompute, dtype of moments and gradients
CHOICES = [(4, "none", "f32"), (2, "none", "f32"), (1, "none", "f32"), (1, "auto", "f32"), (1, "auto", "bf16")]
# True for balanced routing, False for natural: a rank's memory must have room for so many times the rows of balanced routing; of
# several numbers, the first with which the model trains is used
IMBALANCES = {True: (1.1,), False: (1.5, 3)}
COMPARED = 3  # steps of each of the two runs, on R and R / 2 ranks, whose losses are compared
MEMORY = re.compile(r"memory +([\d.]+) MiB .* expected ([\d.]+) for its rows, up to ([\d.]+)")


def words(options):
    return [str(word) for name, value in options.items() for word in (f"--{name}", value)]


def sizes_of(config):
    """moert-train's options for the sizes of a config.json."""
    hidden, heads = config["hidden_size"], config["num_attention_heads"]
    experts = next(config[key] for key in ("num_experts", "num_local_experts") if key in config)
    return {"vocabulary": config["vocab_size"], "hidden": hidden, "layers": config["num_hidden_layers"], "heads": heads,
            "intermediate": config.get("moe_intermediate_size", config["intermediate_size"]), "kv-heads": config["num_key_value_heads"],
            "head-size": config.get("head_dim") or hidden // heads, "experts": experts, "topk": config["num_experts_per_tok"]}  # fmt: skip


class Model:
    """A model in a temporary directory, with its random tokens."""

    def __init__(self, args, name, directory):
        self.args, self.name, self.directory = args, name, Path(directory)
        case, sizes = MODELS[name]
        write_config(directory, case, sizes | args.set, args.length)
        self.sizes = sizes_of(json.loads((self.directory / "config.json").read_text()))
        self.tokens = self.directory / "tokens"
        draws = random.Random(1).choices(range(self.sizes["vocabulary"]), k=1 << 22)
        self.tokens.write_bytes(array("I", draws).tobytes())

    def run(self, ranks, program, options):
        command = [*shlex.split(self.args.mpirun), "-n", str(ranks), f"build/bin/{program}", *options]
        done = subprocess.run(command, capture_output=True, text=True, stdin=subprocess.DEVNULL)
        if done.returncode != 0:
            raise RuntimeError(f"{program} on {ranks} ranks: {done.stderr.strip()[-600:]}")
        return done.stdout

    def choose(self, ranks, imbalance):
        """The first of CHOICES that fits, as options of moert-train, and what moert-info expects; or None."""
        total = self.args.ranks * self.args.sequences
        for sequences, recompute, states in CHOICES:
            if total % (ranks * sequences) != 0:
                continue
            pieces = total // (ranks * sequences)
            options = TYPES | {"micro-batches": pieces, "length": self.args.length, "moments": states, "gradients": states}
            asked = options | {"model": self.directory, "batch": total // pieces, "recompute": recompute, "imbalance": imbalance}
            memory = json.loads(self.run(ranks, "moert-info", ["--json", *words(asked)]))["memory"]
            if memory["fits"]:
                return options | {"batch": total, "recompute": memory["recompute"], "loss-chunk": memory["loss_chunk"]}, memory
        return None

    def train(self, ranks, steps, options, balanced):
        """A training's lines of metrics, and what it prints."""
        metrics = self.directory / "metrics.jsonl"
        options = {"form": FORMS[self.name]} | self.sizes | options | {"tokens": self.tokens, "token-bits": 32, "steps": steps}
        options |= {"lr": "1e-4", "warmup": 4, "log-every": 0, "metrics": metrics, "peak-tflops": self.args.peak_tflops}
        text = self.run(ranks, "moert-train", [*words(options), "--watch", *(["--balanced-routing"] if balanced else [])])
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        if len(lines) != steps or not all(math.isfinite(line["loss"]) for line in lines):
            raise RuntimeError(f"{len(lines)} of {steps} steps, losses {[line['loss'] for line in lines]}")
        return lines, text

    def measure(self, balanced, imbalance):
        """A list with a row of results; empty if the model does not fit."""
        ranks, start = self.args.ranks, time.monotonic()
        chosen = self.choose(ranks, imbalance)
        if chosen is None:
            print(f"{self.name:14} does not fit on {ranks} ranks with {imbalance} times balanced routing's rows", flush=True)
            return []
        options, memory = chosen
        lines, text = self.train(ranks, self.args.steps, options, balanced)
        late = lines[len(lines) // 2 :]
        median = {key: statistics.median(line[key] for line in late) for key in ("tokens_per_s", "model_flops_per_s", "mfu", "expert_load")}
        taken, expected, rows = (float(number) for number in MEMORY.search(text).groups())
        row = {"model": self.name, "routing": "balanced" if balanced else "natural", "ranks": ranks, "options": options,
               "sequences": options["batch"] // options["micro-batches"] // ranks, "tokens_per_s_rank": median["tokens_per_s"] / ranks,
               "tflops_rank": median["model_flops_per_s"] / ranks / 1e12, "mfu": median["mfu"], "expert_load": median["expert_load"],
               "losses": [line["loss"] for line in lines], "memory_mib": taken, "expected_mib": expected, "rows": rows,
               "estimate_mib": memory["needed"] / 2**20, "seconds": time.monotonic() - start}  # fmt: skip
        states = "" if options["moments"] == "f32" else " + bf16"
        chunks = " + chunks" if options["loss-chunk"] else ""
        print(f"{self.name:14} {row['routing']:9} {row['sequences']:4}  {options['recompute'] + chunks + states:18} "
              f"{row['tokens_per_s_rank']:9.0f} {row['tflops_rank']:8.1f} {100 * row['mfu']:5.1f} {row['expert_load']:6.2f} "
              f"{row['losses'][0]:8.4f} {row['losses'][-1]:8.4f} {taken:9.0f} {expected:9.0f} {row['seconds']:5.0f}", flush=True)  # fmt: skip
        return [row]

    def compare(self):
        """Prints whether R / 2 ranks have the losses of R ranks; False if not."""
        ranks, half = self.args.ranks, self.args.ranks // 2
        chosen = self.choose(half, IMBALANCES[True][0]) if half > 0 else None
        if chosen is None:
            print(f"#   {self.name} does not fit on {half} ranks" if half > 0 else "#   no fewer ranks", flush=True)
            return True
        losses = [[line["loss"] for line in self.train(n, COMPARED, chosen[0], True)[0]] for n in (half, ranks)]
        same = losses[0] == losses[1]
        print(f"#   {half} and {ranks} ranks: {'the same losses' if same else 'OTHER LOSSES'}: {losses[1]}"
              f"{'' if same else f', {losses[0]}'}", flush=True)  # fmt: skip
        return same


def attempt(name, call, *arguments):
    """What the call returns; None if a program fails, with its message."""
    try:
        return call(*arguments)
    except RuntimeError as error:
        print(f"{name:14} FAILED: {error}", flush=True)
        return None


def measure_routing(model, balanced):
    """What Model.measure returns with the first imbalance with which the model trains; None if there is none."""
    tries = (attempt(model.name, model.measure, balanced, imbalance) for imbalance in IMBALANCES[balanced])
    return next((row for row in tries if row is not None), None)


def measure(args, name):
    """The rows of a model, and whether all is right."""
    with tempfile.TemporaryDirectory() as directory:
        model = Model(args, name, directory)
        rows = [measure_routing(model, routing == "balanced") for routing in args.routing]
        same = attempt(name, model.compare)
        return sum(filter(None, rows), []), None not in rows and same is True


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--ranks", type=int, required=True)
    parser.add_argument("--only", nargs="+", choices=FORMS.values(), default=list(FORMS.values()))
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--routing", nargs="+", choices=["balanced", "natural"], default=["balanced", "natural"])
    parser.add_argument("--length", type=int, default=4096)
    parser.add_argument("--sequences", type=int, default=8)
    parser.add_argument("--peak-tflops", type=float, default=989)
    parser.add_argument("--mpirun", default="mpirun")
    parser.add_argument("--set", nargs="+", default=[])
    parser.add_argument("--title", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    args.set = {key: int(value) for key, value in (pair.split("=") for pair in args.set)}
    rows, right = [], True
    print("".join(f"# {line}\n" for line in args.title.splitlines()), end="")
    print(f"# {args.sequences} sequences of {args.length} random tokens a rank and step, {args.steps} steps, {args.peak_tflops:g} TFLOP/s peak")
    print(f"{'#model':14} {'routing':9} {'seqs':4}  {'recompute':18} {'tokens/s':>9} {'TFLOP/s':>8} {'MFU %':>5} {'load':>6} "
          f"{'loss':>8} {'last':>8} {'MiB':>9} {'expected':>9} {'s':>5}", flush=True)  # fmt: skip
    for name in [name for name, form in FORMS.items() if form in args.only]:
        new, well = attempt(name, measure, args, name) or ([], False)
        rows, right = rows + new, right and well
        if args.json:
            Path(args.json).write_text(json.dumps({"title": args.title, "rows": rows}, indent=1))
    sys.exit(not right)


if __name__ == "__main__":
    main()

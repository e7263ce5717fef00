#!/usr/bin/env python3
"""Evaluates metrics (JSON lines, one per step) of moert-train and torch_train.py, for bench/run-cpu and bench/run-h200.

    train_report.py cpus [THREADS]                        prints THREADS CPUs, first threads of cores before second ones
    train_report.py rate [--skip N] FILE                  median tokens/s without the first N steps
    train_report.py compare [OPTION...]                   losses next to each other, then rates and ratios
    train_report.py write FILE [KEY=VALUE...] [ROW...]    the rows written by compare, as one JSON object

compare exits with 1 if the losses of the first steps differ by more than the tolerance. With --model, --length and
--gemm-tflops it also prints the model's FLOP/s as a percentage of that GEMM rate. Needs only Python.
"""
import argparse
import json
import os
import statistics
import sys
from pathlib import Path

VERIFIED_STEPS = 4


def cpus(args):
    def siblings(cpu):
        text = Path(f"/sys/devices/system/cpu/cpu{cpu}/topology/thread_siblings_list").read_text().strip()
        ranges = [part.split("-") for part in text.split(",")]
        return [cpu for part in ranges for cpu in range(int(part[0]), int(part[-1]) + 1)]

    def quota_cpus():  # CPUs of a container whose CPU time is limited
        try:
            quota, period = Path("/sys/fs/cgroup/cpu.max").read_text().split()
            return int(quota) // int(period)
        except (OSError, ValueError):
            return 1 << 20

    allowed = os.sched_getaffinity(0)
    rank = {cpu: [c for c in siblings(cpu) if c in allowed].index(cpu) for cpu in allowed}
    threads = args.threads or max(1, min(list(rank.values()).count(0), quota_cpus()))
    if threads > len(allowed):
        sys.exit(f"train_report.py: {threads} threads, but only {len(allowed)} CPUs may be used")
    print(",".join(map(str, sorted(sorted(allowed, key=lambda cpu: (rank[cpu], cpu))[:threads]))))


def read(path):
    return [json.loads(line) for line in Path(path).read_text().splitlines()]


def rates(path, skip):
    return [row["tokens_per_s"] for row in read(path)[skip:]]


def rate(args):
    print(f"{statistics.median(rates(args.file, args.skip)):.0f}")


def summary(name, files, skip):
    runs = [rates(path, skip) for path in files]
    every = sorted(value for run in runs for value in run)
    tenth = len(every) // 10
    cores = [row["cores"] for path in files for row in read(path)[skip:] if "cores" in row]
    return {
        "name": name,
        "tokens_per_s": statistics.median(every),
        "p10": every[tenth],
        "p90": every[-1 - tenth],
        "cores": statistics.median(cores) if cores else None,
        "rounds": [statistics.median(run) for run in runs],
        "losses": [row["loss"] for row in read(files[0])],
    }


def flops_per_token(path, length):
    """FLOPs of a step: forward 2 for each weight that a token uses and 4 for each head element that it attends to; backward twice that."""
    config = json.loads((Path(path) / "config.json").read_text())
    hidden, heads, experts = (config[key] for key in ("hidden_size", "num_attention_heads", "num_local_experts"))
    size = config.get("head_dim") or hidden // heads
    projections = 2 * hidden * size * (heads + config["num_key_value_heads"])
    intermediate = config.get("moe_intermediate_size") or config["intermediate_size"]
    layer = projections + experts * hidden + config["num_experts_per_tok"] * 3 * hidden * intermediate
    attention = 4 * heads * size * (length + 1) / 2  # a token attends to half of the others, on average
    return 3 * (2 * config["vocab_size"] * hidden + config["num_hidden_layers"] * (2 * layer + attention))


def verify(ours, theirs, tolerance):
    """True if loss, balancing loss and gradient norm of the first steps agree."""
    right = True
    for a, b in zip(ours[:VERIFIED_STEPS], theirs[:VERIFIED_STEPS], strict=True):
        # clip_grad_norm_ sums squares in float32: an error of 2e-4 for 4 million elements; float64 sums agree
        limits = {"loss": tolerance, "aux_loss": 10 * tolerance, "grad_norm": 100 * tolerance}
        off = {key: abs(a[key] - b[key]) / abs(a[key]) for key in limits}
        good = all(off[key] <= limits[key] for key in limits)
        right &= good
        parts = "  ".join(f"{key} {a[key]:.6f} {b[key]:.6f} off {off[key]:.0e}" for key in limits)
        print(f"  step {a['step']}  {parts}  {'ok' if good else 'WRONG'}")
    return right


def compare(args):
    ours = summary("moert-train", args.ours, args.skip)
    right, rows = True, []
    for name, *files in args.against:
        print(f"  losses of moert-train and of {name}:")
        right &= verify(read(args.ours[0]), read(files[0]), args.tolerance)
        rows.append(summary(name, files, args.skip))
    for row in [ours] + rows:
        line = f"  {row['name']:<24} {row['tokens_per_s']:9.0f} tokens/s (p10-p90 {row['p10']:.0f}-{row['p90']:.0f})"
        if row["cores"]:
            line += f" on {row['cores']:.1f} cores"
        if row is not ours:
            row["ratio"] = ours["tokens_per_s"] / row["tokens_per_s"]
            ratios = [a / b for a, b in zip(ours["rounds"], row["rounds"])]
            line += f"  moert-train is {row['ratio']:.2f} times as fast ({min(ratios):.2f} to {max(ratios):.2f} in single rounds)"
        print(line)
    if args.model:
        flops = flops_per_token(args.model, args.length)
        percentages = []
        for row in [ours] + rows:
            row["gemm_share"] = row["tokens_per_s"] * flops / (args.gemm_tflops * 1e12)
            percentages.append(f"{row['name']} {100 * row['gemm_share']:.1f} %")
        ours |= {"gflop_per_token": flops / 1e9, "gemm_tflops": args.gemm_tflops}
        print(f"  {flops / 1e9:.3f} GFLOP a token; of a GEMM's {args.gemm_tflops:.0f} TFLOP/s: {', '.join(percentages)}")
    goal = {}
    if args.goal > 0:
        goal = {"goal": args.goal, "holds": rows[0]["ratio"] >= args.goal}
        print(f"  goal {args.goal} times {rows[0]['name']}: {'holds' if goal['holds'] else 'missed'}")
    tried = [{"variant": " ".join(words[:-1]), "tokens_per_s": float(words[-1])} for words in map(str.split, args.tried)]
    row = {"title": args.title, "right": right, "ours": ours, "theirs": rows, "tried": tried} | goal
    Path(args.row).write_text(json.dumps(row))
    sys.exit(not right)


def write(args):
    facts = dict(fact.split("=", 1) for fact in args.parts if "=" in fact)
    rows = [json.loads(Path(path).read_text()) for path in args.parts if "=" not in path]
    Path(args.file).write_text(json.dumps(facts | {"rows": rows}, indent=1) + "\n")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)

    def command(run, *positional):
        made = commands.add_parser(run.__name__)
        made.set_defaults(run=run)
        for name, kind in positional:
            made.add_argument(name, **kind)
        return made

    command(cpus, ("threads", {"type": int, "nargs": "?", "default": 0}))
    command(rate, ("file", {})).add_argument("--skip", type=int, default=2)
    made = command(compare)
    made.add_argument("--title", required=True)
    made.add_argument("--skip", type=int, default=2)
    made.add_argument("--tolerance", type=float, default=1e-4)
    made.add_argument("--goal", type=float, default=0.0, help="ratio to the first of --against to reach")
    made.add_argument("--ours", nargs="+", required=True, metavar="FILE")
    made.add_argument("--against", nargs="+", action="append", required=True, metavar="NAME FILE...")
    made.add_argument("--model", metavar="DIR", help="with --length and --gemm-tflops")
    made.add_argument("--length", type=int)
    made.add_argument("--gemm-tflops", type=float)
    made.add_argument("--tried", nargs="*", default=[], metavar="'VARIANT RATE'")
    made.add_argument("--row", required=True)
    command(write, ("file", {}), ("parts", {"nargs": "*"}))
    args = parser.parse_args()
    args.run(args)


if __name__ == "__main__":
    main()

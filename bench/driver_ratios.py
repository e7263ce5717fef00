#!/usr/bin/env python3
"""Rates of moert with two OpenCL drivers, or of two builds with one driver, and their ratios. The two sides alternate.

  driver_ratios.py NAME=FILE.icd[:LIBRARIES][@BUILD] NAME=FILE.icd[:LIBRARIES][@BUILD] [--rounds 5] [--steps 40] [--only WORD...]
      [--title TEXT] [--json FILE]

LIBRARIES is the directory of a driver's libraries, BUILD that of moert's programs (build). The rows are grouped GEMMs, whose results
bench_gemm checks, and training steps of the quickstart's model, whose losses must have the same digits on both sides. A rate is the
median over the rounds; of a training, over the steps of its second half.
"""
import argparse
import json
import os
import re
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

SHAPES = [(8, 512, 1408, 1024), (8, 64, 1408, 1024)]  # E, M, N, K
ROOT = Path(__file__).resolve().parents[1]
# the model and schedule of launch/quickstart
QUICKSTART = re.search(r"--layers.*?(?=\"\$@\")", (ROOT / "launch/quickstart").read_text(), re.S).group().replace("\\\n", " ").split()
LOW = {"f32": [], "bf16": ["--precision", "bf16", "--dense", "bf16"], "mxfp8": ["--precision", "mxfp8"], "nvfp4": ["--precision", "nvfp4"]}


class Side:
    def __init__(self, text):
        self.name, _, rest = text.partition("=")
        rest, _, self.build = rest.partition("@")
        icd, _, libraries = rest.partition(":")
        self.build = self.build or "build"
        self.environment = os.environ | {"OCL_ICD_VENDORS": icd, "LD_LIBRARY_PATH": libraries}

    def run(self, program, *words):
        command = [f"{self.build}/bin/{program}", *map(str, words)]
        done = subprocess.run(command, env=self.environment, capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False)
        if done.returncode != 0:
            sys.exit(f"{self.name}: {' '.join(command)}: {(done.stderr or done.stdout).strip()[-600:]}")

    def gemm(self, work, dtype, shape):
        """{op: GFLOP/s} of a shape, each result checked."""
        words = [word for flag, value in zip(("--experts", "--rows", "--n", "--k"), shape) for word in (flag, value)]
        self.run("bench_gemm", *words, "--dtype", dtype, "--groups", "balanced", "--rival", "none", "--json", work / "rows")
        return {row["op"]: row["gflops"] for row in json.loads((work / "rows").read_text())}, None

    def train(self, work, precision, steps):
        """{"": tokens/s} and the losses of a training on one rank."""
        metrics = work / "metrics"
        metrics.unlink(missing_ok=True)
        self.run("moert-train", "--data", "LICENSE", "docs", *QUICKSTART, *LOW[precision], "--steps", steps, "--log-every", 0,
                 "--save-every", 0, "--sample", 0, "--metrics", metrics)  # fmt: skip
        lines = [json.loads(line) for line in metrics.read_text().splitlines()]
        return {"": statistics.median(line["tokens_per_s"] for line in lines[steps // 2 :])}, [line["loss"] for line in lines]


def compare(args, title, measure):
    """Prints and returns the rows of what measure(side) returns for each side in turn: rates by name, and results that must be equal."""
    (first, second), rates, results = args.sides, [{}, {}], []
    for _ in range(args.rounds):
        for side, collected in zip(args.sides, rates):
            found, result = measure(side)
            results.append(result)
            for key, rate in found.items():
                collected.setdefault(key, []).append(rate)
    same, rows = all(result == results[0] for result in results), []
    for key in rates[0]:
        ours, theirs = (statistics.median(side[key]) for side in rates)
        rows.append({"what": f"{title} {key}".strip(), first.name: ours, second.name: theirs, "ratio": theirs / ours, "same": same})
        print(f"{rows[-1]['what']:40} {ours:10.1f} {theirs:10.1f} {theirs / ours:6.3f}{'' if same else '  OTHER LOSSES'}", flush=True)
    return rows


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sides", nargs=2, type=Side)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--only", nargs="+", choices=LOW, default=list(LOW))
    parser.add_argument("--title", default="")
    parser.add_argument("--json")
    args = parser.parse_args()
    first, second = (side.name for side in args.sides)
    print("".join(f"# {line}\n" for line in args.title.splitlines()), end="")
    print(f"# medians of {args.rounds} rounds, in which {first} and {second} alternate; GFLOP/s of GEMMs, tokens/s of trainings")
    print(f"#{'what':39} {first:>10} {second:>10} {second}/{first}", flush=True)
    rows = []
    with tempfile.TemporaryDirectory() as directory:
        work = Path(directory)
        for dtype in [word for word in ("f32", "bf16") if word in args.only]:
            for e, m, n, k in SHAPES:
                rows += compare(args, f"GEMM {dtype} E={e} M={m} N={n} K={k}", lambda side: side.gemm(work, dtype, (e, m, n, k)))
        for precision in args.only:
            rows += compare(args, f"training {precision}", lambda side: side.train(work, precision, args.steps))
    if args.json:
        Path(args.json).write_text(json.dumps({"title": args.title, "rows": rows}, indent=1))
    sys.exit(not all(row["same"] for row in rows))


if __name__ == "__main__":
    main()

#!/usr/bin/env python3
"""Medians over rounds of bench_exchange, bench_layer and torch_ranks.py on the same sizes, their ratios, and the goals that hold.

  rank_ratios.py OURS.json... --rival THEIRS.json... [--title TEXT] [--json FILE]
"""
import json
import statistics
import sys

from op_ratios import parse, print_title, write

# (H, I, E) of a layer: its model, and the goal, which is the layer's speed relative to the rival. The goal of an exchange is at least
# GBPS GB/s, or at most US us with up to FEW_TOKENS tokens
LAYERS = {(2048, 768, 128): ('qwen3-30b', 2.0), (2048, 1024, 64): ('olmoe', 2.0), (7168, 2048, 256): ('deepseek-v3', 1.4),
          (4096, 14336, 8): ('mixtral-8x7b', 1.15)}
GBPS, FEW_TOKENS, US = 330, 128, 25
SUMMED = 'combine of sums' # MOERT_PUSH=sum


def read(paths):
    """The rows of all files by op and sizes: lists over the rounds, in the order of the first file."""
    found = {}
    for path in paths:
        with open(path) as file:
            for row in json.load(file):
                row['us'] = row['us'] if 'us' in row else row['ms'] * 1e3
                if row.get('sums') and row['op'] == 'dispatch':
                    continue # a dispatch does the same with and without MOERT_PUSH=sum
                if row.get('sums'):
                    row['op'] = SUMMED
                key = row['op'], row['T'], row['H'], row.get('I', 0), row['E'], row['K'], row.get('skew', '-')
                found.setdefault(key, []).append(row)
    return found


def judge(row):
    """The goal as text, and whether it holds; None, None without one."""
    if 'I' in row:
        goal = LAYERS.get((row['H'], row['I'], row['E']), (None, None))[1]
        return (f'x {goal}', row['ratio'] is not None and row['ratio'] >= goal) if goal else (None, None)
    if row['skew'] != 'balanced':
        return None, None
    if row['T'] <= FEW_TOKENS:
        return f'{US} us', row['us'] <= US
    return f'{GBPS} GB/s', row['gbps'] >= GBPS


def merge(key, rounds, rival):
    us = statistics.median(row['us'] for row in rounds)
    theirs = statistics.median(row['us'] for row in rival) if rival else None
    row = {name: rounds[0][name] for name in ('op', 'engine', 'ranks', 'T', 'H', 'I', 'E', 'K', 'skew') if name in rounds[0]}
    row.update(us=us, us_rounds=[r['us'] for r in rounds], rival=rival[0]['engine'] if rival else None, rival_us=theirs,
               ratio=theirs / us if rival else None, wrong=any(r['wrong'] for r in rounds + (rival or [])))
    if 'bytes' in rounds[0]:
        row['gbps'] = rounds[0]['bytes'] / us * 1e-3
    else:
        row['tflops'] = statistics.median(r['gflops'] for r in rounds) * 1e-3
    row['goal'], row['holds'] = judge(row)
    return row


def show(row):
    name = LAYERS.get((row['H'], row.get('I'), row['E']), (row.get('skew', '-'),))[0]
    rate = f"{row['gbps']:8.1f} GB/s   " if 'gbps' in row else f"{row['tflops']:8.1f} TFLOP/s"
    rival = f"{row['rival_us']:10.1f} {row['ratio']:6.2f}" if row['ratio'] is not None else f"{'-':>10} {'-':>6}"
    goal = f"{row['goal']} {'holds' if row['holds'] else 'missed'}" if row['goal'] else '-'
    print(f"{row['op']:16} {name:12} {row['T']:5} {row['H']:5} {row['E']:4} {row['K']:2} {row['us']:10.1f} {rate} {rival}  "
          f"{goal}{'  WRONG' if row['wrong'] else ''}")


def main():
    options = parse(__doc__, nargs='*', default=[])
    ours, theirs = read(options.ours), read(options.rival)
    rows = [merge(key, rounds, theirs.get((key[0].replace(SUMMED, 'combine'), *key[1:]))) for key, rounds in ours.items()]
    rivals = sorted({row['rival'] for row in rows if row['rival']})
    print_title(options)
    rounds = max(map(len, ours.values()))
    print(f"# {f'medians of {rounds} rounds' if rounds > 1 else 'one round'} alternating; rival {', '.join(rivals) or 'none'}; bf16 both ways")
    print(f"{'#op':16} {'model, skew':12} {'T':>5} {'H':>5} {'E':>4} {'K':>2} {'us':>10} {'a rank':>16} {'rival us':>10}  ratio  goal")
    for row in rows:
        show(row)
    asked = [row for row in rows if row['goal']]
    print(f"# {sum(row['holds'] for row in asked)} of {len(asked)} goals hold")
    write(options, rows)
    sys.exit(any(row['wrong'] for row in rows))


if __name__ == '__main__':
    main()

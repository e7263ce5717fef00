#!/usr/bin/env python3
"""Medians over several runs of bench_op and of torch_grouped_mm.py on the same rows, and their ratios.

  op_ratios.py OURS.json... --rival THEIRS.json... [--title TEXT] [--json FILE]
"""
import argparse
import json
import math
import statistics


def medians(paths):
    runs = []
    for path in paths:
        with open(path) as file:
            runs.append(json.load(file))
    return runs[0], [statistics.median(run[i]['tflops'] for run in runs) for i in range(len(runs[0]))]


def parse(about, **rival):
    parser = argparse.ArgumentParser(description=about, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument('ours', nargs='+')
    parser.add_argument('--rival', **rival)
    parser.add_argument('--title', default='')
    parser.add_argument('--json')
    return parser.parse_args()


def print_title(options):
    print(''.join(f'# {line}\n' for line in options.title.splitlines()), end='')


def write(options, rows):
    if options.json:
        with open(options.json, 'w') as file:
            json.dump({'title': options.title, 'rows': rows}, file, indent=1)


def main():
    options = parse(__doc__, nargs='+', required=True)
    rows, ours = medians(options.ours)
    others, theirs = medians(options.rival)
    print_title(options)
    print(f"# medians of {len(options.ours)} alternating runs; rival {others[0]['backend']}")
    print(f"{'#op':13} {'dtype':5} {'E':>4} {'rows':>8} {'N':>6} {'K':>6} {'groups':8} {'TFLOP/s':>8} {'rival':>8} ratio wrong")
    logs = {}
    for row, our, their in zip(rows, ours, theirs):
        del row['ends']
        row.update(tflops=our, rival=others[0]['backend'], rival_tflops=their, ratio=our / their)
        logs.setdefault(row['groups'], []).append(math.log(our / their))
        print(f"{row['op']:13} {row['dtype']:5} {row['E']:4} {row['rows']:8} {row['N']:6} {row['K']:6} {row['groups']:8} "
              f"{our:8.1f} {their:8.1f} {our / their:5.2f} {row['wrong']:5}")
    for groups, values in logs.items():
        print(f'# {groups}: ratio {math.exp(statistics.mean(values)):.3f} geometric mean, '
              f'{math.exp(min(values)):.3f} minimum')
    write(options, rows)


if __name__ == '__main__':
    main()

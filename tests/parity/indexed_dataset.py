"""Datasets by megatron-core; tests/parity/megatron runs it.

make NAME TYPE         writes NAME.bin and NAME.idx with 10^6 tokens; some documents are empty, or have several sequences
compare NAME DOCUMENTS compares megatron-core's documents with DOCUMENTS, JSON arrays that moert-info has written
"""
import json
import sys

import numpy
from megatron.core.datasets.indexed_dataset import IndexedDataset, IndexedDatasetBuilder

TOKENS = 1_000_000


def make(name, kind):
    rng = numpy.random.default_rng(1)
    dtype = numpy.dtype(kind)
    limit = min(int(numpy.iinfo(dtype).max), 2**31 - 1)
    builder = IndexedDatasetBuilder(f"{name}.bin", dtype=dtype.type)
    left = TOKENS
    while left > 0:
        lengths = [min(int(length), left) for length in rng.integers(0, 2000, size=rng.integers(1, 4))]
        while sum(lengths) > left:
            lengths.pop()
        builder.add_document(rng.integers(0, limit + 1, size=sum(lengths)).astype(dtype), lengths)
        left -= sum(lengths)
    builder.finalize(f"{name}.idx")


def compare(name, path):
    dataset = IndexedDataset(name)
    borders = dataset.document_indices
    count = tokens = 0
    with open(path) as file:
        for line, first, end in zip(file, borders[:-1], borders[1:], strict=True):
            theirs = [int(token) for at in range(first, end) for token in dataset[at]]
            if json.loads(line) != theirs:
                sys.exit(f"document {count} differs")
            count += 1
            tokens += len(theirs)
    print(f"{count} documents, {tokens} tokens are equal")
    sys.exit(tokens != TOKENS)


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](*sys.argv[2:])

"""Compares the scalars of RUN/events.* with RUN/metrics.jsonl: tests/parity/events.py RUN"""
import glob
import json
import sys

import numpy
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

run = sys.argv[1]
accumulator = EventAccumulator(glob.glob(f"{run}/events.*")[0], size_guidance={"scalars": 0})
accumulator.Reload()
events = {
    (name, event.step): event.value
    for name in accumulator.Tags()["scalars"]
    for event in accumulator.Scalars(name)
}
with open(f"{run}/metrics.jsonl") as file:
    rows = [json.loads(line) for line in file]
metrics = {
    (name, row["step"]): numpy.float32(value)
    for row in rows
    for name, value in row.items()
    if name != "step" and value is not None
}
differ = [key for key in metrics.keys() | events.keys() if metrics.get(key) != events.get(key)]
print(f"{len(metrics)} values of {len(rows)} steps, {len(differ)} differ {differ[:3]}")
sys.exit(bool(differ) or len(rows) != 8)

"""The options of a context, its log and its watchdog."""
import os
import time

import numpy

os.environ["MOERT_LOG"] = "info"

import moert
from support import main, refuses


def test_options_replace_the_environment(context):
    lines = []
    with moert.Context(context.comm, engine="staged", timeout_s=60, log=lambda level, line: lines.append((level, line))) as other:
        assert other.engine() == "staged" and other.rank == context.rank
    assert context.rank > 0 or any(level == "info" and "device" in line for level, line in lines), lines


def test_wrong_options_are_refused(context):
    refuses("ERROR_USAGE", "'fast'", moert.Context, context.comm, engine="fast")
    refuses("ERROR_USAGE", "known are variable, off, on", moert.Context, context.comm, binding="maybe")
    refuses("ERROR_USAGE", "is no communicator of mpi4py", moert.Context, context.comm, placement=3)
    refuses("ERROR_USAGE", "86400", context.set_timeout, 86401)


def test_a_paused_watch_waits_for_a_late_rank(context):
    other = moert.Context(context.comm, timeout_s=1)
    layer = moert.Layer(other, hidden=8, intermediate=8, experts=4, topk=2)
    layer.initialize(1, 0.1)
    with other.paused_watch():
        if 0 < context.rank == context.size - 1:
            time.sleep(2.5)
    other.set_timeout(0)
    y, _ = layer.forward(numpy.ones((4, 8), numpy.float32), training=False)
    other.close()
    return y.tobytes()


main(__name__)

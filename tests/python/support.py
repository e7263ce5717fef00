"""Runs the functions test_* of a file and prints TAP lines; all ranks agree on each verdict.

A test may return bytes. Rank 0 prints their digest, which tests/python/run compares over numbers of ranks.
"""
import hashlib
import os
import sys
import traceback

import moert


class Skip(Exception):
    """Raised by a test that cannot run here; the text says why."""


def agreed(context, failed):
    return any(context.gather(failed))


def close(name, actual, expected, bound):
    """Asserts that max |actual - expected| <= bound * max(1, max |expected|)."""
    import numpy
    actual, expected = numpy.asarray(actual, numpy.float64), numpy.asarray(expected, numpy.float64)
    error = numpy.abs(actual - expected).max(initial=0.0) / max(1.0, numpy.abs(expected).max(initial=0.0))
    assert actual.shape == expected.shape and error <= bound, f"{name}: off by {error:.3g}, above {bound}"


def refuses(status, text, call, *args, **kwargs):
    """Asserts that the call raises moert.Error with this status, and a message that contains `text`."""
    try:
        call(*args, **kwargs)
    except moert.Error as error:
        assert error.status == status and text in str(error), f"{error.status}: {error}, not {status}: ...{text}..."
        return
    raise AssertionError(f"no error, expected {status}: ...{text}...")


def resident_bytes():
    with open("/proc/self/statm", encoding="ascii") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def main(module):
    context = moert.Context()
    tests = [value for name, value in vars(sys.modules[module]).items() if name.startswith("test_")]
    wanted, bad = sys.argv[1:], False
    for number, test in enumerate([t for t in tests if not wanted or t.__name__ in wanted], 1):
        failed, result, note = False, None, ""
        try:
            result = test(context)
        except Skip as skip:
            note = f" # SKIP {skip}"
        except Exception:  # this rank prints the failure; below, all ranks agree on it
            failed = True
            print("".join("# " + line + "\n" for line in traceback.format_exc().splitlines()), end="", flush=True)
        failed = agreed(context, failed)
        bad = bad or failed
        if context.rank == 0:
            print(f"{'not ok' if failed else 'ok'} {number} - {test.__name__}{note}", flush=True)
            if isinstance(result, bytes):
                print(f"# digest {test.__name__} {hashlib.sha256(result).hexdigest()}", flush=True)
    sys.exit(bad)

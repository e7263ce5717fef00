"""Bindings, arrays, op objects and quantizers over NumPy."""
import os
import pathlib
import shutil
import subprocess
import sys

import numpy

import moert
from moert import _array, _bindings, _library
from support import Skip, close, main, refuses

ROOT = pathlib.Path(__file__).resolve().parents[2]
RNG = numpy.random.default_rng


def bits(x):
    """bf16 of float32, rounded to nearest even, as bits."""
    word = x.view(numpy.uint32)
    return ((word + 0x7FFF + ((word >> 16) & 1)) >> 16).astype(numpy.uint16)


def widened(x):
    return (x.astype(numpy.uint32) << 16).view(numpy.float32)


def test_bindings_are_those_of_the_headers(_):
    script = ROOT / "src/python/bindings.py"
    if not script.exists() or not shutil.which(os.environ.get("CC", "gcc").split()[0]):
        raise Skip("no compiler, or no source tree")
    done = subprocess.run([sys.executable, str(script), "--check"], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_initialisers_are_those_of_the_headers(_):
    options = _library.structs["moert_layer_options"]()
    assert options.size == _bindings.STRUCTS["moert_layer_options"][0] and options.router.renormalise
    assert options.glu.limit == numpy.inf and options.router.group_best == 2 and options.router.size > 0


def test_a_missing_library_is_named(_):
    environment = dict(os.environ, MOERT_LIBRARY="/nonexistent/libmoert.so")
    done = subprocess.run([sys.executable, "-c", "import moert"], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "cannot load libmoert" in done.stderr and "/nonexistent/libmoert.so" in done.stderr


def test_the_library_is_found_by_pkg_config(context):
    if not shutil.which("pkg-config"):
        raise Skip("no pkg-config")
    directory = pathlib.Path(moert.path).resolve().parent
    environment = dict(os.environ, PKG_CONFIG_PATH=f"/tmp/moert-{os.getpid()}")
    environment.pop("MOERT_LIBRARY", None)
    os.mkdir(environment["PKG_CONFIG_PATH"])
    try:
        text = f"libdir={directory}\nName: moert\nDescription: test\nVersion: 0\n"
        pathlib.Path(environment["PKG_CONFIG_PATH"], "moert.pc").write_text(text, encoding="ascii")
        done = subprocess.run([sys.executable, "-c", "import moert; print(moert.path)"], env=environment, capture_output=True,
                              text=True, check=False)
    finally:
        shutil.rmtree(environment["PKG_CONFIG_PATH"])
    packaged = list(pathlib.Path(moert.__file__).with_name("lib").glob("libmoert.so*"))
    assert packaged or done.stdout.strip() == str(directory / "libmoert.so"), done.stdout + done.stderr


def test_errors_have_the_message_and_the_status(context):
    refuses("ERROR_USAGE", "9 experts per token", moert.Layer, context, hidden=8, intermediate=8, experts=8, topk=9)
    refuses("ERROR_USAGE", "known are f32, bf16, mxfp8, nvfp4", moert.Layer, context, hidden=8, precision="int8")
    try:
        moert.Op("glu", context, depth=3)
    except TypeError as error:
        assert "no field 'depth'" in str(error)
    else:
        raise AssertionError("an unknown option was accepted")


def test_arrays_that_cannot_be_used_in_place_are_refused(context):
    x = numpy.zeros((4, 8), numpy.float32)
    op = moert.Op("gemm_forward", context, groups=1, rows=4, n=4, k=8)
    ends, weight, y = numpy.array([4], numpy.uint32), numpy.zeros((4, 8), numpy.float32), numpy.zeros((4, 4), numpy.float32)
    strided = numpy.zeros((4, 16), numpy.float32)[:, ::2]
    refuses("ERROR_USAGE", "x: the array of shape [4, 8] is not contiguous", op, ends=ends, x=strided, weight=weight, y=y)
    refuses("ERROR_USAGE", "unknown to moert", op, ends=ends, x=x.astype(numpy.float64), weight=weight, y=y)
    refuses("ERROR_USAGE", "neither the array interface nor DLPack", op, ends=ends, x=[1, 2], weight=weight, y=y)
    y.flags.writeable = False
    refuses("ERROR_USAGE", "y: the array is read-only", op, ends=ends, x=x, weight=weight, y=y)
    refuses("ERROR_USAGE", "x", op, ends=ends, weight=weight, y=numpy.zeros((4, 4), numpy.float32))


def test_arrays_by_dlpack_are_used_in_place(context):
    class Other:  # an array of a library without the array interface
        def __init__(self, array):
            self.array = array

        def __dlpack__(self):
            return self.array.__dlpack__()

    x = numpy.arange(12, dtype=numpy.float32).reshape(3, 4)
    memory = _array.Memory(Other(x[1:]))
    assert memory.address == x[1:].ctypes.data and memory.shape == (2, 4) and memory.dtype == "f32"
    refuses("ERROR_USAGE", "not contiguous", _array.Memory, Other(x[:, 1:]))


def test_a_grouped_gemm_is_numpys(context):
    rng, rows, n, k = RNG(1), 64, 48, 32
    ends = numpy.array([40, 40, 64], numpy.uint32)
    x, weight = rng.standard_normal((rows, k), numpy.float32), rng.standard_normal((3, n, k), numpy.float32)
    expected = numpy.concatenate([x[:40] @ weight[0].T, x[40:] @ weight[2].T])
    y = numpy.empty((rows, n), numpy.float32)
    op = moert.Op("gemm_forward", context, groups=3, rows=rows, n=n, k=k)
    op(ends=ends, x=x, weight=weight, y=y)
    close("y", y, expected, 1e-5)
    first = y.copy()
    op = moert.Op("gemm_forward", context, groups=3, rows=rows, n=n, k=k, weight={"discrete": True})
    op(ends=ends, x=x, weights=list(weight), y=y)
    assert (y == first).all(), "discrete weights give other bits than stacked ones"
    dweight = numpy.empty_like(weight)
    moert.Op("gemm_wgrad", context, groups=3, rows=rows, n=n, k=k)(ends=ends, x=x, weight=dweight, y=y)
    close("dweight", dweight[2], y[40:].T.astype(float) @ x[40:], 1e-5)
    assert (dweight[1] == 0).all()
    return y.tobytes() + dweight.tobytes()


def test_a_bf16_gemm_reads_bits_of_uint16(context):
    rng, rows, n, k = RNG(2), 16, 24, 32
    x, weight = bits(rng.standard_normal((rows, k), numpy.float32)), bits(rng.standard_normal((1, n, k), numpy.float32))
    y = numpy.empty((rows, n), numpy.uint16)
    op = moert.Op("gemm_forward", context, groups=1, rows=rows, n=n, k=k, x="bf16", weight="bf16", y="bf16")
    op(ends=numpy.array([rows], numpy.uint32), x=x, weight=weight, y=y)
    close("y", widened(y), widened(x) @ widened(weight[0]).T, 2 ** -8)


def test_an_op_without_waiting_is_done_after_finish(context):
    x, weight = numpy.ones((8, 8), numpy.float32), numpy.ones((1, 8, 8), numpy.float32)
    ends, y = numpy.array([8], numpy.uint32), numpy.zeros((8, 8), numpy.float32)
    op = moert.Op("gemm_forward", context, groups=1, rows=8, n=8, k=8, accumulate=True)
    arrays = {name: moert.Buffer(context, array=array) for name, array in (("ends", ends), ("x", x), ("weight", weight), ("y", y))}
    for _ in range(3):
        op(wait=False, **arrays)
    arrays["y"].synchronize()
    assert (y == 24).all() and op.backend in ("portable", "reference", "nvidia") and op.buffer_bytes("y") == y.nbytes


def test_quantized_operands_count_as_their_values(context):
    rng, rows, n, k = RNG(3), 32, 32, 64
    ends = numpy.array([20, 32], numpy.uint32)
    x, weight = rng.standard_normal((rows, k), numpy.float32), rng.standard_normal((2 * n, k), numpy.float32)
    for name in ("mxfp8-e4m3", "mxfp8-e5m2", "mxfp4"):
        qx, qw = moert.quantize(x, name, context=context), moert.quantize(weight, name, context=context)
        y = numpy.empty((rows, n), numpy.float32)
        how = {"how": {"format": name}}
        op = moert.Op("gemm_forward", context, groups=2, rows=rows, n=n, k=k, x=how, weight=how)
        op(ends=ends, x=qx.q, x_scale=qx.scale, weight=qw.q, weight_scale=qw.scale, y=y)
        vx, vw = moert.dequantize(qx, context=context), moert.dequantize(qw, context=context)
        close(name, y, numpy.concatenate([vx[:20] @ vw[:n].T, vx[20:] @ vw[n:].T]), 1e-5)
        close(name, vx, x, {"mxfp4": 0.26}.get(name, 0.13))


def test_every_format_and_axis_comes_back(context):
    rng, ends = RNG(4), numpy.array([0, 37, 64], numpy.uint32)
    x = rng.standard_normal((64, 96), numpy.float32)
    for name, bound in (("mxfp8_e4m3", 0.07), ("mxfp4", 0.26), ("nvfp4", 0.26), ("fp8_block", 0.07)):
        for axis in ("row", "column", "tile"):
            if (name, axis) == ("fp8_block", "column"):
                continue
            quantized = moert.quantize(x, {"format": name, "axis": axis}, ends=ends, context=context)
            back = moert.dequantize(quantized, context=context)
            close(f"{name} {axis}", back, x, bound)
            half = moert.dequantize(quantized, "bf16", context=context)
            close(f"{name} {axis} in bf16", widened(half), back, 2 ** -8)


def test_casts_round_to_nearest_even(context):
    x = RNG(5).standard_normal(1000, numpy.float32)
    assert (moert.cast(x, "bf16", context=context) == bits(x)).all()
    assert (moert.cast(bits(x), "f32", context=context) == widened(bits(x))).all()
    assert (moert.cast(moert.cast(x, "f16", context=context), "f32", context=context) == x.astype(numpy.float16)).all()
    eight = moert.cast(x, "e4m3", context=context)
    close("e4m3", moert.cast(eight, "f32", of="e4m3", context=context), x, 0.07)


def test_layouts_come_back(context):
    scales = RNG(6).integers(0, 256, (150, 7), numpy.uint8)
    ends = numpy.array([30, 150], numpy.uint32)
    for given in (None, ends):
        tiles = moert.swizzle(scales, given, context=context)
        assert (moert.unswizzle(tiles, 150, 7, given, context=context) == scales).all()
        assert tiles.size == 4 * 512
    r, c = 33, 5
    whole = moert.swizzle(scales, context=context)
    assert whole[c // 4 * 512 + r % 32 * 16 + r // 32 * 4 + c % 4] == scales[r, c]
    x = RNG(7).standard_normal((5, 64), numpy.float32)
    for granularity in (1, 8, 32):
        runs = moert.interleave(x, granularity, context=context)
        assert (runs[:, :granularity] == x[:, :granularity]).all() and (moert.interleave(runs, granularity, True, context=context) == x).all()


def test_no_array_was_copied(context):
    context.require_in_place()
    assert moert.Buffer.copies == 0


main(__name__)

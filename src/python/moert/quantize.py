"""Quantizers, casts and layouts over arrays; moert/quantize.h has the formulas.

Results are new NumPy arrays unless the caller gives arrays for them.
"""
import collections
import ctypes

import numpy

from ._array import Call, Memory
from ._library import Error, enumerator, library, structs
from .context import default_context

Quantized = collections.namedtuple("Quantized", "q scale global_ how shape ends")
Quantized.__doc__ = """A block-scaled matrix: payload q, scale, NVFP4's global_ (or None), its quantizer, its shape [M,N], the groups'
ends (or None)."""

_BF16 = numpy.uint16  # holds the bits of bf16 values, since NumPy has no bf16
_NUMPY = {"f32": numpy.float32, "f16": numpy.float16, "bf16": _BF16, "e4m3": numpy.uint8, "e5m2": numpy.uint8}


def quantizer(how):
    """A moert_quantizer from one, from a format's name, or from a dict of its fields."""
    if isinstance(how, structs["moert_quantizer"]):
        return how
    return structs["moert_quantizer"](**({"format": how} if isinstance(how, str) else how))


def _groups(call, ends, rows):
    if ends is None:
        return structs["moert_groups"](rows=rows)
    ends = Memory(ends, "ends")
    return structs["moert_groups"](ends=call.take(ends, "ends", ("u32", "i32"), (None,)), count=ends.count, rows=rows)


def _ends_pointer(ends):
    return (None, 0) if ends is None else (Memory(ends, "ends").expect("ends", ("u32", "i32"), (None,)).address, len(ends))


def quantize(x, how, ends=None, context=None):
    """Quantizes float32 x[M,N]: a Quantized. `how`: see quantizer(). `ends` [G] divides the rows into groups."""
    context, how = context or default_context(), quantizer(how)
    memory = Memory(x, "x").expect("x", "f32", (None, None))
    rows, columns = memory.shape
    pointer, groups = _ends_pointer(ends)
    block = library.moert_format_block(how.format)
    blocks = library.moert_row_blocks(pointer, groups, block) if groups else library.moert_row_blocks_most(rows, 1, block)
    shape = library.moert_quantized_shape_of(ctypes.byref(how), rows, columns, blocks)
    wide = library.moert_format_scale_bytes(how.format) == 4
    q = numpy.zeros((shape.q_lines, shape.q_bytes), numpy.uint8)
    scale = numpy.zeros((shape.scale_lines, shape.scales), numpy.float32 if wide else numpy.uint8)
    amax = result = None
    if how.format == enumerator("moert_format", "nvfp4"):
        amax, result = (numpy.zeros(groups if how.group_scales else 1, numpy.float32) for _ in range(2))
    op = structs["moert_quantize"](how=how, columns=columns, blocks=blocks)
    with Call(context) as call:
        op.set("groups", _groups(call, ends, rows))
        for name, array in (("x", memory), ("q", q), ("scale", scale), ("amax", amax), ("global", result)):
            op.set(name, call.take(array, name, output=name != "x"))
        if amax is not None:
            library.moert_quantize_amax(ctypes.byref(op))
        library.moert_quantize_run(ctypes.byref(op))
    return Quantized(q, scale, result, how, (rows, columns), ends)


def dequantize(quantized, dtype="f32", x=None, context=None):
    """x[M,N] in float32, or in bf16 (bits in uint16), from a Quantized."""
    context, (rows, columns) = context or default_context(), quantized.shape
    x = numpy.empty((rows, columns), _NUMPY[dtype]) if x is None else x
    op = structs["moert_quantize"](how=quantized.how, columns=columns, x_type=dtype)
    pointer, groups = _ends_pointer(quantized.ends)
    block = library.moert_format_block(quantized.how.format)
    op.blocks = library.moert_row_blocks(pointer, groups, block) if groups else library.moert_row_blocks_most(rows, 1, block)
    with Call(context) as call:
        op.set("groups", _groups(call, quantized.ends, rows))
        for name, array in (("q", quantized.q), ("scale", quantized.scale), ("global", quantized.global_)):
            op.set(name, call.take(array, name))
        op.set("x", call.take(x, "x", dtype, (rows, columns), output=True))
        library.moert_dequantize_run(ctypes.byref(op))
    return x


def cast(source, to, target=None, of=None, context=None):
    """The elements of `source` in the dtype `to`, rounded to nearest even. `of`: the dtype of bytes, such as "e4m3"."""
    context, memory = context or default_context(), Memory(source, "source")
    target = numpy.empty(memory.shape, _NUMPY[to]) if target is None else target
    with Call(context) as call:
        op = structs["moert_cast"](n=memory.count, to=to, source=call.take(memory, "source"),
                                   target=call.take(target, "target", shape=memory.shape, output=True))
        op.set("from", of or memory.dtype)
        library.moert_cast_run(ctypes.byref(op))
    return target


def swizzle(linear, ends=None, transposed=False, context=None):
    """The tiles of 128 x 4 (bytes) of scales[lines, width]; `ends` divides the lines into matrices."""
    return _tiles(linear, None, ends, transposed, context)


def unswizzle(swizzled, lines, width, ends=None, transposed=False, context=None):
    """scales[lines, width] of the tiles that swizzle() returned."""
    return _tiles(numpy.zeros((lines, width), numpy.uint8), swizzled, ends, transposed, context)


def _tiles(linear, swizzled, ends, transposed, context):
    context, memory = context or default_context(), Memory(linear, "linear").expect("linear", "u8", (None, None))
    lines, width = memory.shape
    pointer, groups = _ends_pointer(ends)
    bytes_ = library.moert_swizzled_bytes(pointer, groups or 1, lines, width, transposed)
    back = swizzled is not None
    if not back:
        swizzled = numpy.zeros(bytes_, numpy.uint8)
    op = structs["moert_scale_tiles"](width=width, transposed=transposed)
    if groups:  # `tiles` is the number of rows (transposed: columns) of tiles that these ends need
        op.tiles = bytes_ // 512 // max(1, -(-width // (128 if transposed else 4)))
    with Call(context) as call:
        op.set("groups", _groups(call, ends, lines))
        op.set("linear", call.take(memory, "linear", output=back))
        op.set("swizzled", call.take(swizzled, "swizzled", "u8", output=not back))
        (library.moert_unswizzle if back else library.moert_swizzle)(ctypes.byref(op))
    return linear if back else swizzled


def interleave(source, granularity, inverse=False, context=None):
    """[M,2I]: runs of `granularity` columns, alternately of the two halves; `inverse` gives the halves back."""
    context, memory = context or default_context(), Memory(source, "source").expect("source", None, (None, None))
    rows, columns = memory.shape
    if columns % 2:
        raise Error(f"source: {columns} columns do not divide into two halves", "ERROR_USAGE")
    target = numpy.empty((rows, columns), source.dtype if isinstance(source, numpy.ndarray) else _NUMPY[memory.dtype])
    with Call(context) as call:
        op = structs["moert_interleave"](rows=rows, width=columns // 2, granularity=granularity, inverse=inverse,
                                         element_bytes=memory.bytes // max(1, memory.count))
        op.set("from", call.take(memory, "source"))
        op.set("to", call.take(target, "target", output=True))
        library.moert_interleave_run(ctypes.byref(op))
    return target

"""Arrays of other libraries as moert's buffers, without copies: by the array interface (NumPy) or DLPack (torch and others)."""
import ctypes

from ._library import Error, enumerator, library

# The array interface's type: moert's type. NumPy has no bf16: an array of uint16, or of ml_dtypes' type, holds its bits
_INTERFACE = {
    "<f4": "f32", "<f2": "f16", "<u2": "bf16", "<V2": "bf16", "|u1": "u8", "|i1": "u8", "|V1": "u8", "<u4": "u32", "<i4": "i32",
    "<u8": "u64", "<i8": "i64", "|b1": "u8",
}
# DLPack's (type code, bits): moert's type. DLPack's codes: 0 int, 1 unsigned, 2 float, 4 bfloat, 6 bool, 10 and 12 FP8
_DLPACK = {
    (2, 32): "f32", (2, 16): "f16", (4, 16): "bf16", (0, 8): "u8", (1, 8): "u8", (0, 32): "i32", (1, 32): "u32", (0, 64): "i64",
    (1, 64): "u64", (1, 16): "bf16", (6, 8): "u8", (10, 8): "u8", (12, 8): "u8",
}
_BYTES = {"f32": 4, "f16": 2, "bf16": 2, "u8": 1, "u32": 4, "i32": 4, "u64": 8, "i64": 8}
_HOST = (1, 3)  # kDLCPU, kDLCUDAHost


class _Tensor(ctypes.Structure):  # DLTensor of dlpack.h
    _fields_ = [("data", ctypes.c_void_p), ("device", ctypes.c_int * 2), ("ndim", ctypes.c_int), ("code", ctypes.c_uint8),
                ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16), ("shape", ctypes.POINTER(ctypes.c_int64)),
                ("strides", ctypes.POINTER(ctypes.c_int64)), ("byte_offset", ctypes.c_uint64)]


_pointer_of = ctypes.pythonapi.PyCapsule_GetPointer
_pointer_of.restype, _pointer_of.argtypes = ctypes.c_void_p, [ctypes.py_object, ctypes.c_char_p]


class Memory:
    """The memory of an array: address, bytes, shape and dtype. Keeps the array."""

    def __init__(self, array, name="array", writable=False):
        self.array, self.capsule = array, None
        if hasattr(array, "__array_interface__"):
            self._by_interface(name, writable)
        elif hasattr(array, "__dlpack__"):
            self._by_dlpack(name)
        else:
            raise Error(f"{name}: a {type(array).__name__} has neither the array interface nor DLPack", "ERROR_USAGE")
        self.count = 1
        for extent in self.shape:
            self.count *= extent
        self.bytes = self.count * _BYTES[self.dtype]

    def _by_interface(self, name, writable):
        facts = self.array.__array_interface__
        self.shape = tuple(facts["shape"])
        self.dtype = _known(_INTERFACE.get(facts["typestr"]), facts["typestr"], name)
        self.address, readonly = facts["data"]
        if readonly and writable:
            raise Error(f"{name}: the array is read-only", "ERROR_USAGE")
        _contiguous(self.shape, facts.get("strides"), _BYTES[self.dtype], name)

    def _by_dlpack(self, name):
        self.capsule = self.array.__dlpack__()  # the destructor of the capsule gives the tensor back
        tensor = ctypes.cast(_pointer_of(self.capsule, b"dltensor"), ctypes.POINTER(_Tensor)).contents
        if tensor.device[0] not in _HOST:
            raise Error(f"{name}: the tensor is not in host memory; moert takes CPU tensors", "ERROR_USAGE")
        self.shape = tuple(tensor.shape[i] for i in range(tensor.ndim))
        self.dtype = _known(_DLPACK.get((tensor.code, tensor.bits)), f"({tensor.code}, {tensor.bits} bits)", name)
        self.address = (tensor.data or 0) + tensor.byte_offset
        strides = tuple(tensor.strides[i] for i in range(tensor.ndim)) if tensor.strides else None
        _contiguous(self.shape, strides, 1, name)

    def expect(self, name, dtypes=None, shape=None):
        """Refuses other dtypes (a name or several) and another shape; None in a shape is any extent. Returns self."""
        if dtypes is not None and self.dtype not in (dtypes if isinstance(dtypes, tuple) else (dtypes,)):
            raise Error(f"{name}: its elements are {self.dtype}, not {dtypes}", "ERROR_USAGE")
        if shape is not None and (len(shape) != len(self.shape) or
                                  any(want not in (None, have) for want, have in zip(shape, self.shape))):
            wanted = ", ".join("any" if extent is None else str(extent) for extent in shape)
            raise Error(f"{name}: its shape is {list(self.shape)}, not [{wanted}]", "ERROR_USAGE")
        return self


def _known(dtype, text, name):
    if dtype is None:
        raise Error(f"{name}: elements of type {text} are unknown to moert", "ERROR_USAGE")
    return dtype


def _contiguous(shape, strides, unit, name):
    if strides is None or 0 in shape:
        return
    expected = unit
    for extent, stride in zip(reversed(shape), reversed(strides)):
        if extent != 1 and stride != expected:
            raise Error(f"{name}: the array of shape {list(shape)} is not contiguous; pass a contiguous one (no copy is made)",
                        "ERROR_USAGE")
        expected *= extent


class Buffer:
    """Memory of the device: new (`bytes`), or that of an array (`array`), which a CPU's device uses in place.

    What kernels write into an array is in it after synchronize(), or after the calls of this package that wait.
    """

    copies = 0  # number of arrays that synchronize() has copied; stays 0 on CPU devices

    def __init__(self, context, bytes=None, array=None, writable=True):
        self.context, self.handle, self.memory = context, ctypes.c_void_p(), None
        if array is None:
            library.moert_buffer_create(context.device, bytes, ctypes.byref(self.handle))
            self.bytes = bytes
            return
        self.memory = array if isinstance(array, Memory) else Memory(array, writable=writable)
        self.bytes = self.memory.bytes
        if self.bytes == 0:
            library.moert_buffer_create(context.device, 0, ctypes.byref(self.handle))
        else:
            library.moert_buffer_wrap(context.device, self.memory.address, self.bytes, ctypes.byref(self.handle))

    def synchronize(self):
        """Waits for the enqueued work, and makes the array hold the buffer's content."""
        if self.bytes == 0:
            self.context.finish()
            return
        address = ctypes.c_void_p()  # on a CPU, mapping memory of the host copies nothing
        library.moert_buffer_map(self.handle, ctypes.byref(address))
        if self.memory is not None and address.value != self.memory.address:
            Buffer.copies += 1
            ctypes.memmove(self.memory.address, address.value, self.bytes)
        library.moert_buffer_unmap(self.handle, address)
        self.context.finish()

    def __del__(self):
        # enqueued work keeps the device memory alive; after the end of the context, the buffer's device no longer exists
        if getattr(self, "handle", None) and self.context.handle:
            library.moert_buffer_destroy(self.handle)
            self.handle = None


class Call:
    """The buffers of one call: inputs and outputs by name. Leaving the block waits, so that all arrays may be reused."""

    def __init__(self, context):
        self.context, self.buffers, self.outputs = context, [], []

    def __enter__(self):
        return self

    def take(self, array, name, dtypes=None, shape=None, output=False):
        """The handle of an array, or of a Buffer; None of None."""
        if array is None:
            return None
        if not isinstance(array, Buffer):
            memory = array if isinstance(array, Memory) else Memory(array, name, output)
            array = Buffer(self.context, array=memory.expect(name, dtypes, shape))
            if output:
                self.outputs.append(array)
        self.buffers.append(array)
        return array.handle

    def inputs(self):
        """The buffers that are no outputs, to keep for a later call."""
        return [buffer for buffer in self.buffers if buffer not in self.outputs]

    def __exit__(self, kind, *_):
        if kind is None:
            for buffer in self.outputs:
                buffer.synchronize()
        if not self.outputs or kind is not None:
            self.context.finish()


def number(dtype):
    """The moert_dtype of a dtype's name."""
    return enumerator("moert_dtype", dtype)

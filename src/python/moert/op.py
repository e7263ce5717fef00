"""Op objects: grouped GEMMs and their fusions, described once and executed on arrays many times."""
import ctypes

from ._array import Call
from ._library import enumerators, library, structs
from .context import default_context

_RESULTS = {"gemm_forward": "y", "gemm_dgrad": "x", "gemm_wgrad": "weight", "glu": "c d", "dglu": "d"}
_ALWAYS = {"column", "column_scale", "d_scale", "amax", "dprob", "dbias"}  # results of any kind
_OPERANDS = ("x", "weight", "y", "c", "d", "column")


class Op:
    """A grouped GEMM as moert/ops.h describes it; the options have the names of moert_op_options.

    An operand is a dtype ("f32", "bf16", ...) or a dict of the fields of moert_operand, such as
    {"how": {"format": "mxfp8_e4m3"}}.

        op = moert.Op("gemm_forward", groups=8, rows=512, n=256, k=128, x="bf16", weight="bf16")
        op(ends=ends, x=x, weight=weight, y=y)
    """

    def __init__(self, kind, context=None, **options):
        self.context = context or default_context()
        self.kind = {number: name for name, number in enumerators("moert_op_kind").items()}.get(kind, kind)
        described = structs["moert_op_options"](kind=self.kind)
        for name, value in options.items():
            if name in _OPERANDS and isinstance(value, str):
                value = {"type": value}
            described.set(name, value)
        self.handle = ctypes.c_void_p()
        library.moert_op_create(self.context.device, ctypes.byref(described), ctypes.byref(self.handle))
        results = _RESULTS[self.kind].split()
        self._outputs = _ALWAYS | set(results) | {name + "_scale" for name in results}
        self._discrete = options.get("weight", {})
        self._discrete = isinstance(self._discrete, dict) and self._discrete.get("discrete", False)
        self.context.own(self)

    def __call__(self, wait=True, **arrays):
        """Executes the op on arrays or Buffers, by the names of MOERT_OP_BUFFER_TABLE; `weights` is a sequence of arrays.

        Without `wait` the arrays belong to the op until context.finish(), and must live until then.
        """
        buffers, call, kept = structs["moert_op_buffers"](), Call(self.context), []
        for name, value in arrays.items():
            if name in ("weights", "weight_scales"):
                handles = [call.take(one, name, output="weight" in self._outputs) for one in value]
                kept.append((ctypes.c_void_p * len(handles))(*[handle.value for handle in handles]))
                buffers.set(name, ctypes.addressof(kept[-1]))
            else:
                buffers.set(name, call.take(value, name, output=name in self._outputs))
        if not wait:
            library.moert_op_execute(self.handle, ctypes.byref(buffers))
            return
        with call:
            library.moert_op_execute(self.handle, ctypes.byref(buffers))

    @property
    def backend(self):
        """The backend that computes the op."""
        return library.moert_op_backend_name(self.handle).decode()

    @property
    def workspace_bytes(self):
        return library.moert_op_workspace_bytes(self.handle)

    def buffer_bytes(self, name):
        """The least bytes of a buffer; 0 if the op does not take it."""
        return library.moert_op_buffer_bytes(self.handle, name.encode())

    def close(self):
        """Frees the op; its enqueued work still ends."""
        if self.handle and self.context.handle:
            library.moert_op_destroy(self.handle)
        self.handle = None

    def __del__(self):
        if getattr(self, "handle", None):
            self.close()

"""The exchange alone: tokens travel to the owners of their experts and back, for experts of your own."""
import ctypes

import numpy

from ._array import Call, Memory
from ._library import library, structs
from .context import default_context


class Route:
    """The way of tokens to their experts and back, from int32 index[T,K] (-1: dropped), of moert/exchange.h.

    `rows` is M, the rows that this rank receives; ends[L] (uint32) divides them into its experts [first_expert, first_expert + L).
    Any number of routes may exist. Collective over the `ep` ranks that share the experts; 0 = all.

        route = moert.Route(index, experts=8)
        rows = route.dispatch(x)
        y = route.combine(expert(rows), weight)
    """

    def __init__(self, index, experts, context=None, ep=0, row_multiple=1):
        self.context = context or default_context()
        memory = Memory(index, "index").expect("index", ("i32",), (None, None))
        self.tokens, self.topk = memory.shape
        self.handle = ctypes.c_void_p()
        with Call(self.context) as call:
            options = structs["moert_route_options"](experts=experts, topk=self.topk, tokens=self.tokens, row_multiple=row_multiple,
                                                     index=call.take(memory, "index"))
            library.moert_route_create(self.context.mesh(ep), ctypes.byref(options), ctypes.byref(self.handle))
        self.rows = library.moert_route_rows(self.handle)
        plan = structs["moert_plan"].from_address(library.moert_route_plan(self.handle))
        self.first_expert, self.local_experts = plan.first_expert, plan.local_experts
        self.ends = numpy.empty(self.local_experts, numpy.uint32)
        if self.local_experts:
            library.moert_buffer_read(library.moert_route_ends(self.handle), 0, self.ends.ctypes.data, self.ends.nbytes)
        self.context.own(self)

    def _run(self, function, columns, dtype, arrays, outputs, mxfp8=False):
        buffers = structs["moert_route_buffers"](columns=columns, type=dtype, mxfp8=mxfp8)
        shapes = {"tokens": (self.tokens, columns), "weight": (self.tokens, self.topk), "row_weight": (self.rows,),
                  "rows": (self.rows, columns), "combined_rows": (self.rows, columns), "weight_gradient": (self.tokens, self.topk),
                  "row_scale": (self.rows, -(-columns // 32))}
        with Call(self.context) as call:
            for name, array in arrays.items():
                buffers.set(name, call.take(array, name, shape=shapes[name], output=name in outputs))
            function(self.handle, ctypes.byref(buffers))

    def dispatch(self, tokens, weight=None, rows=None, row_weight=None, row_scale=None):
        """rows[M,H] of tokens[T,H], float32 or bf16; with weight[T,K] (rows, row_weight[M]). Bytes as `rows` and a `row_scale` take
        MXFP8 instead. Collective."""
        memory = Memory(tokens, "tokens").expect("tokens", ("f32", "bf16"), (self.tokens, None))
        columns = memory.shape[1]
        if rows is None:
            rows = numpy.empty((self.rows, columns), numpy.float32 if memory.dtype == "f32" else numpy.uint16)
        if weight is not None and row_weight is None:
            row_weight = numpy.empty(self.rows, numpy.float32)
        arrays = {"tokens": memory, "weight": weight, "rows": rows, "row_weight": row_weight, "row_scale": row_scale}
        self._run(library.moert_route_dispatch, columns, memory.dtype, arrays, ("rows", "row_weight", "row_scale"),
                  row_scale is not None)
        return rows if weight is None else (rows, row_weight)

    def combine(self, rows, weight=None, tokens=None):
        """float32 tokens[T,H]: the sum over k of weight[t,k] (1 without `weight`) times the row of slot (t,k). Collective."""
        memory = Memory(rows, "rows").expect("rows", ("f32", "bf16"), (self.rows, None))
        columns = memory.shape[1]
        tokens = numpy.empty((self.tokens, columns), numpy.float32) if tokens is None else tokens
        self._run(library.moert_route_combine, columns, memory.dtype, {"tokens": tokens, "weight": weight, "rows": memory}, ("tokens",))
        return tokens

    def dispatch_backward(self, rows, row_weight=None, tokens=None, weight=None):
        """The gradient of dispatch: float32 tokens[T,H] of rows[M,H]; with row_weight[M] (tokens, weight[T,K]). Collective."""
        memory = Memory(rows, "rows").expect("rows", ("f32", "bf16"), (self.rows, None))
        columns = memory.shape[1]
        tokens = numpy.empty((self.tokens, columns), numpy.float32) if tokens is None else tokens
        if row_weight is not None and weight is None:
            weight = numpy.empty((self.tokens, self.topk), numpy.float32)
        arrays = {"tokens": tokens, "weight": weight, "rows": memory, "row_weight": row_weight}
        self._run(library.moert_route_dispatch_backward, columns, memory.dtype, arrays, ("tokens", "weight"))
        return tokens if row_weight is None else (tokens, weight)

    def combine_backward(self, tokens, weight=None, combined_rows=None, rows=None, weight_gradient=None):
        """The gradient of combine: rows[M,H] of tokens[T,H]; with `weight` and the combined rows (rows, weight_gradient[T,K]).
        Collective."""
        memory = Memory(tokens, "tokens").expect("tokens", ("f32", "bf16"), (self.tokens, None))
        columns = memory.shape[1]
        if rows is None:
            rows = numpy.empty((self.rows, columns), numpy.float32 if memory.dtype == "f32" else numpy.uint16)
        if weight is not None and weight_gradient is None:
            weight_gradient = numpy.empty((self.tokens, self.topk), numpy.float32)
        arrays = {"tokens": memory, "weight": weight, "rows": rows, "combined_rows": combined_rows, "weight_gradient": weight_gradient}
        self._run(library.moert_route_combine_backward, columns, memory.dtype, arrays, ("rows", "weight_gradient"))
        return rows if weight is None else (rows, weight_gradient)

    def close(self):
        """Frees the route. Not collective."""
        if self.handle and self.context.handle:
            library.moert_route_destroy(self.handle)
        self.handle = None

    def __del__(self):
        if getattr(self, "handle", None):
            self.close()

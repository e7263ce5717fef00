"""The Mixture-of-Experts layer over arrays: router, dispatch, experts, combine, and their backward."""
import ctypes
import weakref

import numpy

from ._array import Call, Memory, number
from ._library import Error, enumerator, library, structs
from .context import default_context

_NUMPY = {"f32": numpy.float32, "bf16": numpy.uint16}

_ROUTER = {name for name, _ in structs["moert_router_options"]._fields_} - {"size"}


class Layer:
    """A layer of moert/layer.h; the options have the names of moert_layer_options and moert_router_options.

    `ep` ranks share one set of experts; 0 = all. `exact` replicas give the bits of one set. Collective.

        layer = moert.Layer(hidden=64, intermediate=128, experts=8, topk=2)
        layer.initialize(seed=1, deviation=0.02)
        y, record = layer.forward(x)
        dx = record.backward(dy)
        layer.reduce()
    """

    def __init__(self, context=None, ep=0, exact=False, **options):
        self.context = context or default_context()
        described = structs["moert_layer_options"]()
        for name, value in options.items():
            (described.router if name in _ROUTER else described).set(name, value)
        self.handle = ctypes.c_void_p()
        library.moert_layer_create(self.context.mesh(ep, exact), ctypes.byref(described), ctypes.byref(self.handle))
        self.options, self.hidden = described, described.hidden
        # the library has this condition, too, but does not know that the rows are called x here (src/layer/check.c)
        takes_bf16 = (described.external_routing and described.dispatch == enumerator("moert_dispatch", "bf16")
                      and not described.shared_intermediate)
        self._dtypes = ("f32", "bf16") if takes_bf16 else "f32"
        self.first_expert = library.moert_layer_first_expert(self.handle)
        self.local_experts = library.moert_layer_local_experts(self.handle)
        self._passes = weakref.WeakSet()
        self.context.own(self)

    def initialize(self, seed, deviation):
        """Normal matrices with this standard deviation, biases zero; the same on any number of ranks. Not collective."""
        library.moert_layer_initialize(self.handle, seed, deviation)

    def _shape(self, name):
        """The shape of a tensor, by its name in MOERT_LAYER_TENSOR_TABLE."""
        o, local = self.options, self.local_experts
        h, i, s, e = o.hidden, o.intermediate, o.shared_intermediate, o.router.experts
        shapes = {"router": (e, h), "router_bias": (e,), "shared_w1": (2 * s, h), "shared_w2": (h, s), "w1": (local, 2 * i, h),
                  "b1": (local, 2 * i), "w2": (local, h, i), "b2": (local, h), "correction": (e,),
                  "shared_gate": (1, h)}
        if name not in shapes:
            raise Error(f"tensor '{name}' is unknown; known are {', '.join(shapes)}", "ERROR_USAGE")
        return shapes[name]

    def _view(self, buffer, name):
        if not buffer:
            raise Error(f"this layer has no such tensor: {name}", "ERROR_USAGE")
        shape, address = self._shape(name), ctypes.c_void_p()
        library.moert_buffer_map(buffer, ctypes.byref(address))
        memory = (ctypes.c_float * int(numpy.prod(shape))).from_address(address.value)
        library.moert_buffer_unmap(buffer, address)
        self.context.finish()
        return numpy.frombuffer(memory, numpy.float32).reshape(shape)

    def weight(self, name):
        """The memory of a weight ("router", "w1", ...) as an array, without a copy. CPU devices only.

        After writing to it, call weights_changed().
        """
        self.context.require_in_place()
        return self._view(library.moert_layer_weight(self.handle, enumerator("moert_layer_tensor", name)), name)

    def gradient(self, name):
        """The memory of a weight's gradient, as weight()."""
        self.context.require_in_place()
        return self._view(library.moert_layer_gradient(self.handle, enumerator("moert_layer_tensor", name)), name)

    def weights_changed(self):
        """Says that weights were written: rounded and prepacked copies are renewed."""
        library.moert_layer_weights_changed(self.handle)

    def _ends(self, tokens, sequences):
        """The cumulative ends of this rank's sequences: of one, of a number of equal ones, or as given."""
        if sequences is None:
            return numpy.array([tokens], numpy.uint32)
        if isinstance(sequences, int):
            if sequences < 0 or (sequences and tokens % sequences) or (tokens and not sequences):
                raise Error(f"sequences: {tokens} tokens do not form {sequences} equal sequences", "ERROR_USAGE")
            return numpy.arange(1, sequences + 1, dtype=numpy.uint32) * numpy.uint32(tokens // max(sequences, 1))
        return numpy.ascontiguousarray(sequences, numpy.uint32)

    def forward(self, x, y=None, sequences=None, training=True, index=None, weight=None, token=None):
        """(y, pass) of x[T,H]. Without `training` there is no pass (None). Collective.

        x and y are float32; they may be bf16 in a layer with bf16 dispatch, external_routing and no shared expert.

        x must not change until the pass's backward is done. `sequences` divides the tokens into the leaves of the tree that sums
        the gradients of replicated tensors: a number of equal sequences, or their cumulative ends; one per rank by default. The
        same sequences give the same bits on any number of ranks. A layer with external_routing takes int32 index[T,K] and
        weight[T,K]. Tokens with a negative number in int32 token[T] are padding: no expert computes them.
        """
        memory = Memory(x, "x").expect("x", self._dtypes, (None, self.hidden))
        y = numpy.empty(memory.shape, _NUMPY[memory.dtype]) if y is None else y
        ends = self._ends(memory.shape[0], sequences)
        counts = [1] * self.context.size if sequences is None else self.context.gather(len(ends))
        slots = memory.shape[0], self.options.router.topk
        handle = ctypes.c_void_p()
        with Call(self.context) as call:
            batch = structs["moert_batch"](tokens=memory.shape[0], sequences=len(ends),
                                           first_sequence=sum(counts[: self.context.rank]), total_sequences=sum(counts),
                                           ends=call.take(ends, "ends"), forward_only=not training,
                                           index=call.take(index, "index", "i32", slots),
                                           weight=call.take(weight, "weight", "f32", slots),
                                           type=number(memory.dtype), token=call.take(token, "token", "i32", memory.shape[:1]))
            target = call.take(y, "y", memory.dtype, memory.shape, output=True)
            library.moert_layer_forward(self.handle, ctypes.byref(batch), call.take(memory, "x"), target,
                                        ctypes.byref(handle) if training else None)
        return y, Pass(self, handle, call.inputs(), memory.shape, memory.dtype) if training else None

    def reduce(self, last=True):
        """Sums the gradients of replicated tensors over all ranks; with `last` also those of experts over replicas. Collective."""
        library.moert_layer_reduce(self.handle, last)
        self.context.finish()

    def close(self):
        """Frees the layer and ends its passes. Not collective."""
        if self.handle and self.context.handle:
            for record in list(self._passes):
                record.close()
            self.context.finish()
            library.moert_layer_destroy(self.handle)
        self.handle = None

    def __del__(self):
        if getattr(self, "handle", None):
            self.close()


class Pass:
    """A forward with all that its backward needs. Any number of passes may exist; their backwards may come in any order."""

    def __init__(self, layer, handle, buffers, shape, dtype):
        self.layer, self.handle, self._buffers, self.shape, self.dtype = layer, handle, buffers, shape, dtype
        layer._passes.add(self)

    def backward(self, dy, dx=None, aux_gradient=None, z_factor=0.0, accumulate=False, weight_gradient=None, w1_gradient=None,
                 w2_gradient=None):
        """dx[T,H] from dy[T,H], both of x's dtype; also the gradients of the layer's weights, and with external_routing weight_gradient[T,K].

        The gradients of w1 and w2 go, rounded, to bf16 w1_gradient and w2_gradient if these are given, and not to the layer's own.
        Neither is legal with `accumulate` or replicas of experts. Collective.
        """
        layer = self.layer
        dx = numpy.empty(self.shape, _NUMPY[self.dtype]) if dx is None else dx
        with Call(layer.context) as call:
            losses = structs["moert_layer_losses"](z_factor=z_factor, accumulate=accumulate)
            losses.aux_gradient = call.take(aux_gradient, "aux_gradient", "f32", (layer.options.router.experts,))
            losses.weight_gradient = call.take(weight_gradient, "weight_gradient", "f32", (self.shape[0], layer.options.router.topk), True)
            options, local = layer.options, layer.local_experts
            losses.w1_gradient = call.take(w1_gradient, "w1_gradient", "bf16", (local, 2 * options.intermediate, options.hidden), True)
            losses.w2_gradient = call.take(w2_gradient, "w2_gradient", "bf16", (local, options.hidden, options.intermediate), True)
            library.moert_pass_backward(self.handle, call.take(dy, "dy", self.dtype, self.shape), ctypes.byref(losses),
                                        call.take(dx, "dx", self.dtype, self.shape, output=True))
        self._buffers += call.inputs()
        return dx

    def wgrad(self):
        """The experts' weight gradients, after the backward of a layer with deferred_wgrad. Not collective."""
        library.moert_pass_wgrad(self.handle)
        self.layer.context.finish()

    def view(self, name):
        """What the router has computed, as a copy: "index" [T,K], "weight" [T,K], "logits" [T,E], "scores" [T,E], "lse" [T]."""
        buffer = library.moert_pass_get(self.handle, enumerator("moert_pass_view", name))
        if not buffer:
            raise Error(f"a pass with external routing has no view: {name}", "ERROR_USAGE")
        router, tokens = self.layer.options.router, self.shape[:1]
        shapes = {"index": (router.topk,), "weight": (router.topk,), "logits": (router.experts,), "scores": (router.experts,), "lse": ()}
        result = numpy.empty(tokens + shapes[name], numpy.int32 if name == "index" else numpy.float32)
        library.moert_buffer_read(buffer, 0, result.ctypes.data, result.nbytes)
        return result

    def losses(self, aux_coefficient=0.0, aux_gradient=None):
        """(aux, z): the router's load-balancing and z losses over all tokens of all ranks, without coefficients.

        float32 aux_gradient[E] gets the gradient of aux_coefficient * aux, for backward. Collective.
        """
        with Call(self.layer.context) as call:
            found = structs["moert_pass_losses"](aux_coefficient=aux_coefficient)
            found.aux_gradient = call.take(aux_gradient, "aux_gradient", "f32", (self.layer.options.router.experts,), True)
            library.moert_pass_report(self.handle, ctypes.byref(found))
        return found.aux, found.z

    @property
    def expert_counts(self):
        """Slots of each expert [E], over the ranks that share the experts."""
        counts = library.moert_pass_expert_counts(self.handle)
        experts = self.layer.options.router.experts
        return numpy.array((ctypes.c_uint64 * experts).from_address(counts), numpy.uint64)

    def close(self):
        """Ends the pass; its memory serves the layer's next pass. Not collective."""
        if self.handle and self.layer.handle and self.layer.context.handle:
            library.moert_pass_destroy(self.handle)
        self.handle, self._buffers = None, []

    def __del__(self):
        if getattr(self, "handle", None):
            self.close()

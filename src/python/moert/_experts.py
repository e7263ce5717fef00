"""Gated experts: the forward and backward of one call, in torch tensors of one dtype.

OpExperts uses the exchange and op objects, which read the weights in place:

    rows, prob = dispatch(x, weight)     c = rows gate_up^T + bias    h = GLU(c) * prob
    y = combine(h down^T + prob * down_bias)

The weight multiplies in the GLU, so dispatch and combine are transposes of each other.

LayerExperts uses a layer with the caller's routing, whose GEMMs read bf16 pairs twice as fast as an op converts them. It keeps a
float32 copy of the weights, and copies them again when torch has counted a change.
"""
import functools

import torch
from torch.utils.weak import WeakTensorKeyDictionary

from ._library import Error
from ._pool import empty
from .exchange import Route
from .layer import Layer
from .op import Op

_DTYPES = {torch.float32: "f32", torch.bfloat16: "bf16"}


def capacity(rows):
    """Rows of the arrays that hold `rows`: few different values, at most an eighth more, so that ops are used again."""
    unit = max(64, 1 << max(0, rows.bit_length() - 4))
    return max(1, -(-rows // unit)) * unit


@functools.lru_cache(maxsize=64)
def _op(context, kind, dtype, groups, rows, n, k, flags=(), glu=()):
    operands = {name: dtype for name in ("x", "weight", "y", "c", "d")}
    if glu:
        operands["glu"] = dict(glu)
    return Op(kind, context, groups=groups, rows=rows, n=n, k=k, bias_type=dtype, **operands, **dict.fromkeys(flags, True))


def dtype_of(*tensors):
    """The dtype's name, of tensors that must agree."""
    for tensor in tensors:
        if tensor is not None and (tensor.dtype != tensors[0].dtype or tensor.dtype not in _DTYPES):
            found = ", ".join(str(one.dtype) for one in tensors if one is not None)
            raise Error(f"tokens and experts must all be float32 or all bfloat16, not {found}", "ERROR_USAGE")
    return _DTYPES[tensors[0].dtype]


class OpExperts:
    """One call: forward() with what backward() needs, on this rank's experts gate_up[L,2I,H] and down[L,H,I]."""

    def __init__(self, context, index, experts, weights, glu, ep=0):
        self.gate_up, self.down, self.gate_up_bias, self.down_bias = (None if one is None else one.detach() for one in weights)
        self.context, self.glu = context, tuple(sorted(glu.items()))
        self.route = Route(index, experts, context, ep)
        self.local, double, self.hidden = self.gate_up.shape
        self.inner, self.ends = double // 2, self.route.ends
        if self.local != self.route.local_experts:
            raise Error(f"this rank owns {self.route.local_experts} experts, but has the weights of {self.local} experts", "ERROR_USAGE")
        self.rows, self.capacity = self.route.rows, capacity(self.route.rows)

    def _run(self, kind, n, k, flags=(), glu=(), **arrays):
        flags = tuple(sorted(flags))
        _op(self.context, kind, self.dtype, self.local, self.capacity, n, k, flags, glu)(ends=self.ends, **arrays)

    def _empty(self, columns):
        return empty(self.capacity, columns, dtype=self.gate_up.dtype)

    def forward(self, x, weight, training):
        """float32 y[T,H] of x[T,H] and float32 weight[T,K]."""
        self.dtype = dtype_of(x, *(one for one in (self.gate_up, self.down, self.gate_up_bias, self.down_bias) if one is not None))
        self.x, self.prob = self._empty(self.hidden), torch.empty(self.capacity)
        self.route.dispatch(x, weight, self.x[:self.rows], self.prob[:self.rows])
        self.h, self.c = self._empty(self.inner), self._empty(2 * self.inner) if training else None
        flags = {"prob"} | ({"save_c"} if training else set()) | ({"bias"} if self.gate_up_bias is not None else set())
        self._run("glu", 2 * self.inner, self.hidden, flags, self.glu, x=self.x, weight=self.gate_up, c=self.c, d=self.h, prob=self.prob,
                  bias=self.gate_up_bias)
        out, flags = self._empty(self.hidden), ("bias", "bias_scale") if self.down_bias is not None else ()
        self._run("gemm_forward", self.hidden, self.inner, flags, x=self.h, weight=self.down, y=out, bias=self.down_bias,
                  bias_scale=self.prob if flags else None)
        return self.route.combine(out[:self.rows], tokens=torch.empty(x.shape))

    def backward(self, dy, wanted):
        """(dx, dweight, dgate_up, ddown, dgate_up_bias, ddown_bias) from dy[T,H]; those of weights only where `wanted` (4)."""
        dout, dc, dprob = self._empty(self.hidden), self._empty(2 * self.inner), torch.zeros(self.capacity)
        self.route.combine_backward(dy, rows=dout[:self.rows])
        dbias = torch.zeros_like(self.gate_up_bias) if wanted[2] else None
        self._run("dglu", self.hidden, self.inner, {"prob", "dprob"} | ({"dbias"} if wanted[2] else set()), self.glu, y=dout,
                  weight=self.down, c=self.c, d=dc, prob=self.prob, dprob=dprob, dbias=dbias)
        dgate_up = ddown = ddown_bias = None
        if wanted[1]:
            ddown = empty(*self.down.shape, dtype=self.down.dtype)
            self._run("gemm_wgrad", self.hidden, self.inner, x=self.h, y=dout, weight=ddown)
        if self.down_bias is not None:
            ddown_bias = self._bias_backward(dout, dprob, wanted[3])
        if wanted[0]:
            dgate_up = empty(*self.gate_up.shape, dtype=self.gate_up.dtype)
            self._run("gemm_wgrad", 2 * self.inner, self.hidden, x=self.x, y=dc, weight=dgate_up)
        self._run("gemm_dgrad", 2 * self.inner, self.hidden, y=dc, weight=self.gate_up, x=dout)  # dout becomes the gradient of rows
        dx, dweight = self.route.dispatch_backward(dout[:self.rows], dprob[:self.rows], torch.empty(dy.shape),
                                                   torch.empty(self.route.tokens, self.route.topk))
        return dx, dweight, dgate_up, ddown, dbias, ddown_bias

    def _bias_backward(self, dout, dprob, wanted):
        """Adds dout . down_bias to dprob; the bias's gradient, the sums of prob * dout over the rows of each expert."""
        counts = torch.diff(torch.from_numpy(self.ends.astype("int64")), prepend=torch.zeros(1, dtype=torch.int64))
        expert, dout = torch.repeat_interleave(torch.arange(self.local), counts), dout[:self.rows].float()
        dprob[:self.rows] += (dout * self.down_bias.float()[expert]).sum(1)
        if not wanted:
            return None
        total = torch.zeros(self.local, self.hidden).index_add_(0, expert, dout * self.prob[:self.rows, None])
        return total.to(self.down_bias.dtype)


class _Copies:
    """A layer with float32 copies of an experts' weights."""

    def __init__(self, context, count, topk, weights, glu, ep):
        self.key, self.seen = (context, count, topk, glu, ep), None
        self.layer = Layer(context, ep, hidden=weights[0].shape[2], intermediate=weights[1].shape[2], experts=count, topk=topk,
                           precision="bf16", dispatch="bf16", glu=dict(glu),
                           external_routing=True)
        self.copies = [torch.from_numpy(self.layer.weight(name)) for name in ("w1", "w2")]

    def refresh(self, weights):
        seen = [(weight.data_ptr(), weight._version) for weight in weights]
        if seen != self.seen:
            for copy, weight in zip(self.copies, weights):
                copy.copy_(weight.detach())
            self.layer.weights_changed()
            self.seen = seen


_copies = WeakTensorKeyDictionary()  # gate_up: _Copies


class LayerExperts:
    """One call: forward() and backward() as those of OpExperts, for bf16 weights without biases that live as long as their model."""

    def __init__(self, context, index, experts, weights, glu, ep=0):
        key = (context, experts, index.shape[1], tuple(sorted(glu.items())), ep)
        kept = _copies.get(weights[0])
        if kept is None or kept.key != key:
            kept = _copies[weights[0]] = _Copies(*key[:3], weights, *key[3:])
        self.kept, self.index, self.weights = kept, index, weights
        dtype_of(*(weight for weight in weights if weight is not None))
        if weights[0].shape[0] != kept.layer.local_experts:
            raise Error(f"this rank owns {kept.layer.local_experts} experts, but has the weights of {weights[0].shape[0]} experts", "ERROR_USAGE")

    def forward(self, x, weight, training):
        """y[T,H] of x[T,H] and float32 weight[T,K]."""
        dtype_of(x, self.weights[0])
        self.kept.refresh(self.weights[:2])
        y, self.record = self.kept.layer.forward(x, empty(*x.shape, dtype=x.dtype), training=training, index=self.index, weight=weight)
        return y

    def backward(self, dy, wanted):
        """(dx, dweight, dgate_up, ddown, None, None) from dy[T,H]."""
        self.kept.refresh(self.weights[:2])  # another call may have changed them; this one's are those of its forward
        dx, dweight = empty(*dy.shape, dtype=dy.dtype), torch.empty(self.index.shape)
        gradients = [empty(*weight.shape, dtype=torch.bfloat16) if one else None for weight, one in zip(self.weights, wanted[:2])]
        self.record.backward(dy, dx, weight_gradient=dweight, w1_gradient=gradients[0], w2_gradient=gradients[1])
        self.kept.layer.reduce()
        return dx, dweight, *gradients, None, None


def experts_class(weights, context, ep):
    """The class for these weights: LayerExperts for bf16 parameters without biases; its layer is made by all ranks together."""
    stable = weights[0].dtype == torch.bfloat16 and weights[0].is_leaf and weights[2] is None and weights[3] is None
    even = weights[0].shape[2] % 2 == 0  # bf16 rows travel in pairs of values
    return LayerExperts if stable and even and ep in (0, context.size) else OpExperts

"""moert in torch: the layer and the exchange as differentiable functions of CPU tensors."""
import torch

from ._experts import experts_class
from ._library import Error
from ._pool import copied
from .context import default_context
from .exchange import Route
from .layer import Layer

__all__ = ["Exchange", "MoELayer", "experts"]

_NAMES = ("router", "router_bias", "shared_w1", "shared_w2", "w1", "b1", "w2", "b2", "shared_gate")


class _LayerFunction(torch.autograd.Function):
    """y = layer(x). The parameters are arguments so that autograd asks for their gradients; the layer has their memory."""

    @staticmethod
    def forward(ctx, x, module, sequences, *parameters):
        y = torch.empty_like(x)
        ctx.module, ctx.shape = module, x.shape
        ctx.record = module.layer.forward(x.detach(), y, sequences)[1]
        ctx.save_for_backward(x)  # so that torch notices a changed x
        return y

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        _ = ctx.saved_tensors
        layer = ctx.module.layer
        dx = torch.empty(ctx.shape)
        ctx.record.backward(dy.contiguous(), dx)
        layer.reduce()
        gradients = [copied(layer.gradient(name)) if needed else None
                     for name, needed in zip(ctx.module.names, ctx.needs_input_grad[3:])]
        return dx, None, None, *gradients


class MoELayer(torch.nn.Module):
    """The MoE layer of moert/layer.h as a module; options as for moert.Layer. Collective, like every call of it.

    The parameters are torch's (router, w1, w2, ...): float32, in the memory that the layer reads. This rank has those of its
    experts. With precision="bf16" they are the masters of the GEMMs' rounded operands. The input is [..., H], float32 or bf16; T
    may change at every call and differ between ranks. Any number of forwards may precede their backwards.

    Gradients are those of the sum of all ranks' losses: of experts over all tokens and replicas, of other parameters over all
    ranks. So every rank steps its optimizer on its own, and replicas stay equal.
    """

    def __init__(self, hidden, intermediate, experts, topk, *, seed=0, deviation=0.02, context=None, ep=0, **options):
        super().__init__()
        shared = options.get("shared_intermediate", 0)
        here = {"router_bias": options.get("router_bias"), "shared_w1": shared, "shared_w2": shared,
                "b1": options.get("expert_biases"), "b2": options.get("expert_biases"),
                "shared_gate": options.get("shared_gate")}
        self.layer = Layer(context, ep, hidden=hidden, intermediate=intermediate, experts=experts, topk=topk, **options)
        self.layer.initialize(seed, deviation)
        self.layer.context.finish()
        self.names = [name for name in _NAMES if here.get(name, True)]
        self._memory = {name: torch.from_numpy(self.layer.weight(name)) for name in self.names}
        for name, memory in self._memory.items():
            self.register_parameter(name, torch.nn.Parameter(memory))
        if options.get("correction_bias"):
            self.register_buffer("correction", torch.from_numpy(self.layer.weight("correction")))
        self._seen = None

    def weights_changed(self):
        """Says that a parameter was written through `.data` or another view, which torch does not count."""
        self._seen = None

    def _notice_changes(self):
        """Tells the layer of parameters that have changed since the last call, and takes back those that were moved."""
        seen = []
        for name, memory in self._memory.items():
            parameter = getattr(self, name)
            if parameter.data_ptr() != memory.data_ptr():
                if parameter.dtype != torch.float32 or parameter.device.type != "cpu":
                    raise Error(f"{name}: the layer's parameters must stay float32 CPU tensors; for bf16 GEMMs use precision='bf16'",
                                "ERROR_USAGE")
                memory.copy_(parameter.data)
                parameter.data = memory
            seen.append(parameter._version)
        if seen != self._seen:
            self.layer.weights_changed()
            self._seen = seen

    def forward(self, x, sequences=None):
        """The layer of x[..., H]. Of x[B, S, H] each of the B sequences is a leaf of the tree that sums the gradients of replicated
        parameters (see moert.Layer.forward); `sequences` says it otherwise."""
        self._notice_changes()
        tokens = x.float().reshape(-1, x.shape[-1]).contiguous()
        if sequences is None and x.dim() == 3:
            sequences = x.shape[0] if x.shape[1] else 0
        parameters = [getattr(self, name) for name in self.names]
        if torch.is_grad_enabled() and (tokens.requires_grad or any(p.requires_grad for p in parameters)):
            y = _LayerFunction.apply(tokens, self, sequences, *parameters)
        else:
            y = torch.empty_like(tokens)
            self.layer.forward(tokens, y, sequences, training=False)
        return y.reshape(x.shape).to(x.dtype)

    def extra_repr(self):
        options = self.layer.options
        return (f"{options.hidden}, {options.intermediate}, experts={options.router.experts}, topk={options.router.topk}, "
                f"first_expert={self.layer.first_expert}, local_experts={self.layer.local_experts}")


class _Dispatch(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, route):
        ctx.route, ctx.dtype = route, x.dtype
        rows, row_weight = torch.empty(route.rows, x.shape[1], dtype=x.dtype), torch.empty(route.rows)
        route.dispatch(x.detach(), weight.detach(), rows, row_weight)
        return rows, row_weight

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, rows, row_weight):
        route = ctx.route
        dx, dweight = torch.empty(route.tokens, rows.shape[1]), torch.empty(route.tokens, route.topk)
        route.dispatch_backward(rows.contiguous(), row_weight.contiguous(), dx, dweight)
        return dx.to(ctx.dtype), dweight, None


class _Combine(torch.autograd.Function):
    @staticmethod
    def forward(ctx, rows, weight, route):
        ctx.route = route
        ctx.save_for_backward(rows, weight)
        y = torch.empty(route.tokens, rows.shape[1])
        route.combine(rows.detach(), None if weight is None else weight.detach(), y)
        return y.to(rows.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        (rows, weight), dweight = ctx.saved_tensors, None
        drows = torch.empty_like(rows, requires_grad=False)
        if weight is not None:
            dweight = torch.empty(weight.shape)
            rows, weight = rows.detach(), weight.detach()
        ctx.route.combine_backward(dy.contiguous(), weight, rows if weight is not None else None, drows, dweight)
        return drows, dweight, None


class Exchange:
    """The exchange for experts of your own, differentiable: a route of index[T,K], the expert of each slot or -1.

        exchange = moert.torch.Exchange(index, experts=8)
        rows, row_weight = exchange.dispatch(x, weight)
        y = exchange.combine(own_experts(rows, exchange.ends) * row_weight[:, None])

    `ends` [L] divides the rows that this rank receives into its experts [first_expert, first_expert + L). Collective.
    """

    def __init__(self, index, experts, context=None, ep=0):
        self.route = Route(index.detach().to(torch.int32).contiguous(), experts, context, ep)
        self.first_expert, self.rows = self.route.first_expert, self.route.rows
        self.ends = torch.from_numpy(self.route.ends.astype("int64"))

    def dispatch(self, x, weight):
        """(rows[M,H], float32 row_weight[M]) of x[T,H] and weight[T,K]."""
        return _Dispatch.apply(x.contiguous(), weight.float().contiguous(), self.route)

    def combine(self, rows, weight=None):
        """y[T,H]: the sum over k of the row of slot (t,k), times weight[t,k] if given."""
        return _Combine.apply(rows.contiguous(), None if weight is None else weight.float().contiguous(), self.route)


class _ExpertsFunction(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x, weight, gate_up, down, gate_up_bias, down_bias, index, count, glu, context, ep):
        weights = [gate_up, down, gate_up_bias, down_bias]
        chosen = experts_class(weights, context, ep)
        ctx.call = chosen(context, index, count, weights, glu, ep)
        ctx.save_for_backward(gate_up, down, gate_up_bias, down_bias)  # so that torch notices changed weights
        return ctx.call.forward(x.detach(), weight.detach(), any(ctx.needs_input_grad)).to(x.dtype)

    @staticmethod
    @torch.autograd.function.once_differentiable
    def backward(ctx, dy):
        _ = ctx.saved_tensors
        dx, *gradients = ctx.call.backward(dy.contiguous(), ctx.needs_input_grad[2:6])
        return dx.to(dy.dtype), *gradients, None, None, None, None, None


def experts(x, index, weight, gate_up, down, gate_up_bias=None, down_bias=None, *, count=None, glu=None, context=None, ep=0):
    """y[T,H]: of each token the weighted sum of the gated experts that index[T,K] names, with weight[T,K]; differentiable.

    This rank has the weights of its own experts, gate_up[L,2I,H] and down[L,H,I], of `count` in all (by default L on one rank);
    gate rows, then up rows, unless glu={"interleaved": True}; `glu` has the fields of moert_glu_form. Everything but `weight` is
    float32, or everything bf16. The weights must not change until the backward. Collective.
    """
    form = {"limit": float("inf"), "alpha": 1.0, **(glu or {})}
    return _ExpertsFunction.apply(x.contiguous(), weight.float().contiguous(), gate_up.contiguous(), down.contiguous(), gate_up_bias,
                                  down_bias, index.detach().to(torch.int32).contiguous(), count or gate_up.shape[0], form,
                                  context or default_context(), ep)

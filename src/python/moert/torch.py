"""moert in torch: the layer and the exchange as differentiable functions of CPU tensors."""
import torch

from . import context as _context
from ._library import Error, structs
from .layer import Layer

__all__ = ["MoELayer"]

_NAMES = ("router", "router_bias", "shared_w1", "shared_w2", "w1", "b1", "w2", "b2")


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
        gradients = [torch.from_numpy(layer.gradient(name)).clone() if needed else None
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
                "b1": options.get("expert_biases"), "b2": options.get("expert_biases")}
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

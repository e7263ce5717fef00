"""moert's experts for transformers: importing this module registers the experts implementation "moert".

    import moert.transformers
    model.set_experts_implementation("moert")

It runs the experts of every family whose class has transformers' decorator and gated experts: Mixtral, Qwen2-MoE, Qwen3-MoE, OLMoE,
DeepSeek-V2 and -V3, GLM-4 MoE, gpt-oss and others alike, in float32 and bf16, forward and backward.
"""
import torch
from transformers.integrations import moe

from . import torch as _moert
from ._library import Error, library
from .context import default_context

__all__ = ["experts_forward", "reduce_gradients", "shard"]

_WEIGHTS = ("gate_up_proj", "down_proj", "gate_up_proj_bias", "down_proj_bias")


def _glu(module):
    """The fields of moert_glu_form for a module's gate; ERROR_UNSUPPORTED for a gate that moert has not."""
    custom = type(module)._apply_gate is not moe._default_apply_gate
    if custom and all(hasattr(module, name) for name in ("alpha", "limit")) and not module.is_concatenated:  # gpt-oss
        return {"interleaved": True, "limit": float(module.limit), "alpha": float(module.alpha), "offset": 1.0}
    if custom or not module.has_gate or module.has_post_expert_norm:
        raise Error(f"{type(module).__name__}: moert does not support the gate or norm of these experts; choose another experts implementation",
                    "ERROR_UNSUPPORTED")
    name = getattr(module.config, "hidden_act", None)
    activation = library.moert_activation_find(str(name).encode())
    if activation < 0:
        raise Error(f"{type(module).__name__}: moert has no activation '{name}'", "ERROR_UNSUPPORTED")
    return {"interleaved": not module.is_concatenated, "activation": activation}


def experts_forward(module, hidden_states, top_k_index, top_k_weights):
    """The experts implementation "moert"; the arguments are those of every implementation of transformers."""
    if module._is_expert_parallel:
        raise Error("the expert parallelism of the library transformers divides these experts; use moert.transformers.shard instead",
                    "ERROR_UNSUPPORTED")
    sharded = getattr(module, "moert_context", None)
    weights = [getattr(module, name) if index < 2 or module.has_bias else None for index, name in enumerate(_WEIGHTS)]
    if module.is_transposed:
        weights[:2] = [weight.transpose(1, 2) for weight in weights[:2]]
    return _moert.experts(hidden_states.to(weights[0].dtype), top_k_index, top_k_weights, *weights, count=module.num_experts,
                          glu=_glu(module), context=sharded, ep=0 if sharded else 1).to(hidden_states.dtype)


def _modules(model):
    return [module for module in model.modules()
            if hasattr(module, "_is_expert_parallel") and hasattr(module, "down_proj") and module.has_gate]


def shard(model, context=None):
    """Divides the experts of all layers over the ranks: each keeps its own, and the memory of the others is released. Collective.

    The model must be the same on all ranks. Tokens then travel to their experts at every call, so all ranks make the same calls, each
    with its own batch. After each backward, reduce_gradients(model) sums the gradients of all other parameters over the ranks; the
    experts' are complete. save_pretrained gathers the experts and writes on rank 0. Returns the model.
    """
    context = context or default_context()
    model.set_experts_implementation("moert")
    for module in _modules(model):
        _glu(module)
        first, count = _range(context, module.num_experts)
        for name in _WEIGHTS[: 4 if module.has_bias else 2]:
            whole = getattr(module, name)
            own = torch.nn.Parameter(whole.detach()[first:first + count].clone(), requires_grad=whole.requires_grad)
            setattr(module, name, own)
        module.moert_context = context
    model.moert_context = context
    original = model.save_pretrained

    def save_pretrained(directory, *args, **kwargs):
        state = kwargs.pop("state_dict", None) or _gathered(model, context)
        if context.rank == 0:
            original(directory, *args, state_dict=state, **kwargs)
        context.gather(None)  # no rank goes on before the files are there

    model.save_pretrained = save_pretrained
    return model


def _range(context, experts):
    """(first, count) of this rank's experts: contiguous blocks, the first ranks own one more."""
    if experts < context.size:
        raise Error(f"{context.size} ranks cannot share {experts} experts; each rank needs at least one", "ERROR_USAGE")
    least, more = divmod(experts, context.size)
    return context.rank * least + min(context.rank, more), least + (context.rank < more)


def _names(model):
    """The names of the sharded parameters."""
    return {f"{prefix}.{name}" for prefix, module in model.named_modules() if getattr(module, "moert_context", None) and
            module is not model for name in _WEIGHTS if hasattr(module, name)}


def _gathered(model, context):
    """The whole state on rank 0, its own part elsewhere. Collective."""
    state, sharded = dict(model.state_dict()), _names(model)
    for name in sorted(sharded):
        bits = state[name].contiguous().view(torch.uint8 if state[name].dtype != torch.float32 else torch.float32)
        parts = [bits.numpy()] if context.size == 1 else context.comm.gather(bits.numpy(), root=0)
        if context.rank == 0:
            state[name] = torch.cat([torch.from_numpy(part) for part in parts]).view(state[name].dtype)
    return state


def reduce_gradients(model):
    """Sums the gradients of all parameters but the sharded experts over the ranks, in float32. Collective; call it after backward.

    Gradients are then those of the sum of all ranks' losses. A parameter without a gradient on a rank counts as zeros there.
    """
    context, sharded = model.moert_context, _names(model)
    if context.size == 1:
        return
    parameters = [parameter for name, parameter in model.named_parameters() if name not in sharded and parameter.requires_grad]
    for parameter in parameters:
        total = torch.zeros(parameter.shape) if parameter.grad is None else parameter.grad.float().contiguous().clone()
        context.comm.Allreduce(_in_place(), total.numpy())
        if parameter.grad is None:
            parameter.grad = total.to(parameter.dtype)
        else:
            parameter.grad.copy_(total)


def _in_place():
    from mpi4py import MPI
    return MPI.IN_PLACE


moe.ALL_EXPERTS_FUNCTIONS.register("moert", experts_forward)

"""The experts implementation "moert" against transformers' own, family by family; sharded over ranks."""
import shutil
import tempfile

import moert.transformers
import torch
import transformers

import moert
from support import close, main, refuses

TINY = dict(vocab_size=64, hidden_size=32, num_hidden_layers=2, num_attention_heads=4, num_key_value_heads=2, head_dim=8,
            max_position_embeddings=64, pad_token_id=0, bos_token_id=1, eos_token_id=2)
DEEPSEEK = dict(moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1, intermediate_size=40,
                n_shared_experts=1, n_group=2, topk_group=1, kv_lora_rank=16, q_lora_rank=16, qk_nope_head_dim=8, qk_rope_head_dim=8,
                v_head_dim=8, num_key_value_heads=4)
EXPERTS = dict(moe_intermediate_size=24, num_experts=6, num_experts_per_tok=2, intermediate_size=40)
FAMILIES = {
    "Mixtral": dict(intermediate_size=24, num_local_experts=6, num_experts_per_tok=2),
    "Qwen2Moe": dict(EXPERTS, shared_expert_intermediate_size=40, decoder_sparse_step=1),
    "Qwen3Moe": dict(EXPERTS, decoder_sparse_step=1, norm_topk_prob=True),
    "Olmoe": dict(intermediate_size=24, num_experts=6, num_experts_per_tok=2),
    "DeepseekV2": dict(DEEPSEEK, topk_method="greedy", head_dim=8),
    "DeepseekV3": DEEPSEEK,
    "Glm4Moe": dict(moe_intermediate_size=24, n_routed_experts=6, num_experts_per_tok=2, first_k_dense_replace=1, intermediate_size=40,
                    n_group=1, topk_group=1),
    "GptOss": dict(intermediate_size=24, num_local_experts=6, num_experts_per_tok=2),
}
IDS = torch.randint(3, 64, (6, 10), generator=torch.Generator().manual_seed(1))


def build(family, implementation, dtype=torch.float32):
    """The same random model for every implementation, with weights large enough for the experts to matter."""
    config = getattr(transformers, family + "Config")(**{**TINY, **FAMILIES[family]})
    config._attn_implementation = "eager"
    model = getattr(transformers, family + "ForCausalLM")(config)
    generator = torch.Generator().manual_seed(2)
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.copy_(torch.randn(parameter.shape, generator=generator) * 0.15)
    model.set_experts_implementation(implementation)
    return model.to(dtype).train()


def step(model, ids, scale=1.0):
    """(logits, {name: gradient}) of the mean loss."""
    out = model(input_ids=ids, labels=ids, use_cache=False)
    (out.loss * scale).backward()
    return out.logits.detach().float(), {name: p.grad.float() for name, p in model.named_parameters() if p.grad is not None}


def test_logits_and_gradients_of_all_families(context):
    for family in FAMILIES:
        expected, gradients = step(build(family, "eager"), IDS)
        actual, ours = step(build(family, "moert"), IDS)
        close(family, actual, expected, 2e-5)
        assert ours.keys() == gradients.keys(), family
        for name, gradient in gradients.items():
            close(f"{family} {name}", ours[name], gradient, 2e-5)


def experts_alone(family, implementation, dtype):
    """{name: y and gradients} of a layer's experts with given routing, so that no rounding changes the choice of experts."""
    module = build(family, implementation, dtype).model.layers[1].mlp.experts
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(80, 32, generator=generator).to(dtype).requires_grad_()
    weight, index = torch.rand(80, 6, generator=generator).topk(2)
    weight = weight.to(dtype).requires_grad_()
    y = module(x, index, weight)
    y.backward(torch.randn(80, 32, generator=generator).to(dtype))
    found = {"y": y.detach(), "x": x.grad, "weight": weight.grad, **{name: p.grad for name, p in module.named_parameters()}}
    return {name: value.float() for name, value in found.items()}


def test_bf16_is_as_near_as_transformers(_):
    for family in ("Qwen3Moe", "GptOss"):
        exact = experts_alone(family, "eager", torch.float32)
        theirs, ours = (experts_alone(family, implementation, torch.bfloat16) for implementation in ("eager", "moert"))
        for name, value in exact.items():
            mine, other = ((found[name] - value).norm() / value.norm() for found in (ours, theirs))
            assert mine <= 1.2 * other + 1e-3, f"{family} {name}: {mine}, eager {other}"


def test_twenty_steps_follow_transformers(context):
    curves = {}
    for implementation in ("eager", "moert"):
        model = build("Qwen3Moe", implementation)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        curves[implementation] = []
        for _ in range(20):
            loss = model(input_ids=IDS, labels=IDS, use_cache=False).loss
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            curves[implementation].append(loss.item())
    for ours, theirs in zip(curves["moert"], curves["eager"]):
        assert abs(ours - theirs) <= 1e-4 * theirs, f"{ours}, not {theirs}"
    assert curves["moert"][-1] < 0.9 * curves["moert"][0]


def test_sharded_experts_have_the_gradients_of_the_whole(context):
    for family in ("Qwen3Moe", "GptOss"):
        whole, model = build(family, "eager"), moert.transformers.shard(build(family, "eager"), context)
        owned = model.model.layers[1].mlp.experts.down_proj
        counts = context.gather(owned.shape[0])
        assert sum(counts) == 6 and owned.untyped_storage().nbytes() == owned.numel() * 4, counts
        expected, gradients = step(whole, IDS)
        mine = torch.tensor_split(IDS, context.size)[context.rank]
        logits, ours = step(model, mine, len(mine) / len(IDS))
        moert.transformers.reduce_gradients(model)
        close(f"{family} logits", logits, torch.tensor_split(expected, context.size)[context.rank], 2e-5)
        first = sum(counts[: context.rank])
        for name, parameter in model.named_parameters():
            want = gradients[name]
            if parameter.shape != want.shape:
                want = want[first:first + counts[context.rank]]
            close(f"{family} {name}", parameter.grad, want, 2e-5)


def test_save_pretrained_gathers(context):
    directory = context.gather(tempfile.mkdtemp() if context.rank == 0 else None)[0]
    try:
        for dtype in (torch.float32, torch.bfloat16):
            whole, model = build("Qwen3Moe", "eager", dtype), moert.transformers.shard(build("Qwen3Moe", "eager", dtype), context)
            model.save_pretrained(directory)
            if context.rank == 0:
                loaded = transformers.AutoModelForCausalLM.from_pretrained(directory, dtype=dtype).state_dict()
                assert all((loaded[name] == value).all() for name, value in whole.state_dict().items())
            context.gather(None)
    finally:
        if context.rank == 0:
            shutil.rmtree(directory)


def test_experts_that_moert_cannot_run_are_refused(context):
    model = build("Mixtral", "moert")
    model.config.hidden_act = "tanh"
    refuses("ERROR_UNSUPPORTED", "moert has no activation 'tanh'", step, model, IDS)
    assert moert.Buffer.copies == 0


transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()
main(__name__)

"""Golden models with one edit each, and the loss and gradient norm that transformers has for them.

    edges.py SEED COUNT >CASES.json

Each case adds, drops, renames or reshapes one tensor of a model of tests/golden/family or tests/golden/model, or changes one key of its
config.json. `loss` and `norm` are those of the first batch of the model's expected.safetensors; they are null if transformers refuses
the model, or would fill in weights of its own. tests/unit/model/test_edges.c trains each case. Needs torch and transformers.
"""
import contextlib
import glob
import io
import json
import os
import random
import sys
import tempfile
import warnings

import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, logging

logging.set_verbosity_error()
warnings.simplefilter("ignore")
# keys that an edit sets in a config, most of which occur in some family's config, and the values for each key
FOREIGN = {
    "use_qk_norm": [True, False], "qkv_bias": [True, False], "attention_bias": [True, False], "sliding_window": [None, 3, 4096],
    "use_sliding_window": [True, False], "layer_types": [["full_attention", "full_attention"], ["sliding_attention", "full_attention"]],
    "rope_scaling": [{"type": "linear", "factor": 2.0}, {"rope_type": "default"}], "rope_theta": [10000.0, 5000.0],
    "pad_token_id": [0, 3, 500, None], "tie_word_embeddings": [True, False], "norm_topk_prob": [True, False],
    "shared_expert_intermediate_size": [0, 16], "n_shared_experts": [0, 1, 2], "routed_scaling_factor": [1.0, 2.5], "n_group": [1, 2],
    "topk_group": [1, 2], "first_k_dense_replace": [0, 1], "num_nextn_predict_layers": [0, 1], "decoder_sparse_step": [1, 2],
    "mlp_only_layers": [[], [0]], "clip_qkv": [None, 0.5], "transformers.js_config": [{}], "attention_dropout": [0.0, 0.1],
    "partial_rotary_factor": [0.5, 1.0], "rms_norm_eps": [1e-5, 1e-2], "head_dim": [8, 16], "hidden_act": ["silu", "gelu", "relu"],
    "bos_token_id": [None, 1], "eos_token_id": [0, [1, 2]], "router_aux_loss_coef": [0.0, 0.5], "initializer_range": [0.5],
    "max_position_embeddings": [64, 4096], "use_cache": [False], "frobnicate": [1],
}  # fmt: skip
ADDED = [
    "model.layers.0.self_attn.q_proj.bias", "model.layers.0.self_attn.q_norm.weight", "model.layers.1.mlp.shared_expert.gate_proj.weight",
    "model.layers.0.mlp.experts.99.gate_proj.weight", "model.layers.9.input_layernorm.weight", "model.layers.0.self_attn.indexer.wk.weight",
    "lm_head.bias", "model.layers.0.self_attn.rotary_emb.inv_freq", "model.extra.weight", "score.weight",
    "model.layers.0.mlp.gate.e_score_correction_bias",
]  # fmt: skip


def models():
    return sorted(os.path.dirname(path) for path in glob.glob("tests/golden/family/*/config.json") + glob.glob("tests/golden/model/*/config.json"))


def other_value(rng, value):
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return rng.choice([value + 1, max(value - 1, 0), 2 * value, 0, -1, None, "3"])
    if isinstance(value, float):
        return rng.choice([value * 2, value / 2, 0.0, -value, None])
    if isinstance(value, list):
        return rng.choice([value[:-1], value[::-1], []])
    if isinstance(value, dict) and value:
        key = rng.choice(sorted(value))
        return {**value, key: other_value(rng, value[key])}
    return rng.choice([None, "other"])


def edit_of(rng, home):
    with open(f"{home}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    names = {name: list(tensor.shape) for name, tensor in load_file(f"{home}/model.safetensors").items()}
    kind = rng.choice(["add", "drop", "rename", "reshape", "foreign", "foreign", "change", "change", "delete"])
    name = rng.choice(sorted(names))
    if kind == "add":
        new = rng.choice([one for one in ADDED if one not in names])
        return {"tensor": new, "shape": rng.choice([[8], [8, 8], [96]])}
    if kind == "drop":
        return {"tensor": name, "to": None}
    if kind == "rename":
        return {"tensor": name, "to": rng.choice([name + "s", name.replace("layers.1", "layers.7"), name.replace("weight", "bias") + "2"])}
    if kind == "reshape":
        shape = names[name]
        count = torch.Size(shape).numel()
        return {"tensor": name, "shape": rng.choice([[count], [1, count], shape[::-1], [count // 2, 2] if count % 2 == 0 else [count]])}
    key = rng.choice(sorted(FOREIGN) if kind == "foreign" else sorted(config))
    if kind == "delete":
        return {"key": key}
    value = rng.choice(FOREIGN[key]) if kind == "foreign" else other_value(rng, config[key])
    return {"key": key, "value": value}


def edited(home, edit, target):
    """Writes the model with the edit to a directory."""
    with open(f"{home}/config.json", encoding="utf-8") as file:
        config = json.load(file)
    tensors = load_file(f"{home}/model.safetensors")
    if "key" in edit:
        if "value" in edit:
            config[edit["key"]] = edit["value"]
        else:
            config.pop(edit["key"], None)
    elif "shape" not in edit:
        tensor = tensors.pop(edit["tensor"])
        if edit["to"] is not None:
            tensors[edit["to"]] = tensor
    elif edit["tensor"] in tensors:
        tensors[edit["tensor"]] = tensors[edit["tensor"]].reshape(edit["shape"]).contiguous()
    else:
        tensors[edit["tensor"]] = torch.full(edit["shape"], 0.5)
    with open(f"{target}/config.json", "w", encoding="utf-8") as file:
        json.dump(config, file)
    save_file(tensors, f"{target}/model.safetensors", {"format": "pt"})


def judge(home, target):
    """(loss, norm) of the first batch by transformers, or (None, None)."""
    try:
        with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()):
            model, report = AutoModelForCausalLM.from_pretrained(
                target, dtype=torch.float32, attn_implementation="eager", output_loading_info=True, local_files_only=True
            )
        if report["missing_keys"] or report["mismatched_keys"] or report.get("error_msgs"):
            return None, None
        tokens = load_file(f"{home}/expected.safetensors")["tokens"][0].long()
        model.eval()
        logits = model(tokens[:, :-1]).logits
        loss = torch.nn.functional.cross_entropy(logits.reshape(-1, logits.shape[-1]), tokens[:, 1:].reshape(-1))
        loss.backward()
        norm = sum((p.grad.double() ** 2).sum() for p in model.parameters() if p.grad is not None) ** 0.5
        numbers = (loss.item(), float(norm))
        return numbers if all(abs(x) < float("inf") for x in numbers) else (None, None)
    except Exception:
        return None, None


def main():
    rng, count = random.Random(int(sys.argv[1])), int(sys.argv[2])
    torch.set_num_threads(1)
    cases = []
    for _ in range(count):
        home = rng.choice(models())
        edit = edit_of(rng, home)
        with tempfile.TemporaryDirectory() as target:
            edited(home, edit, target)
            loss, norm = judge(home, target)
        cases.append({"model": home, "edit": edit, "loss": loss, "norm": norm})
    print('{"cases": [')
    print(",\n".join(json.dumps(case) for case in cases))
    print("]}")


if __name__ == "__main__":
    main()

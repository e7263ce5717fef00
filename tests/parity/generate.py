"""The tokens that transformers generates greedily with each golden model.

    generate.py >tests/golden/generate.json

The prompt is the first 8 tokens of the model's expected.safetensors. `tokens` has up to 64 tokens, as many as fit into the model's
positions; it ends before a token whose logit exceeds the next best one by less than 1e-4, since rounding could then choose. Needs torch
and transformers. tests/e2e/generate.sh compares moert-generate with the file.
"""
import glob
import json
import os
import sys

import torch
from safetensors.torch import load_file
from transformers import AutoModelForCausalLM, logging

PROMPT, MOST, MARGIN = 8, 64, 1e-4


def greedy(path):
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    text = load_file(os.path.join(path, "expected.safetensors"))["tokens"].reshape(-1)[:PROMPT].tolist()
    tokens = []
    while len(tokens) < MOST and len(text) <= model.config.max_position_embeddings:
        ids = torch.tensor([text])
        best = model(input_ids=ids, attention_mask=torch.ones_like(ids)).logits[0, -1].topk(2)
        if (best.values[0] - best.values[1]).item() < MARGIN:
            break
        tokens.append(best.indices[0].item())
        text = text + tokens[-1:]
    return {"prompt": text[:PROMPT], "tokens": tokens}


def main():
    logging.set_verbosity_error()
    root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "golden")
    models = sorted(os.path.dirname(path) for kind in ("family", "model") for path in glob.glob(f"{root}/{kind}/*/model.safetensors"))
    with torch.no_grad():
        made = {os.path.relpath(path, root): greedy(path) for path in models}
    lines = [f'  "{name}": {json.dumps(case)}' for name, case in made.items()]
    sys.stdout.write("{\n" + ",\n".join(lines) + "\n}\n")


main()

#!/usr/bin/env python3
"""Compares a model's logits with Hugging Face transformers, on the first batch of a token file.

    moert-train --model DIR --tokens TOKENS.safetensors --save-logits LOGITS.safetensors
    tests/parity/logits.py DIR TOKENS.safetensors LOGITS.safetensors

Needs torch, transformers and safetensors. Exits non-zero when the largest difference exceeds 1e-4.
"""
import sys

import torch
import transformers
from safetensors.torch import load_file

LIMIT = 1e-4

model_dir, token_file, logit_file = sys.argv[1:4]
torch.backends.cuda.matmul.allow_tf32 = False
model = transformers.AutoModelForCausalLM.from_pretrained(
    model_dir, dtype=torch.float32, attn_implementation="eager", local_files_only=True
)
ours = load_file(logit_file)["logits"]
tokens = load_file(token_file)["tokens"][0, :, :-1].long()
with torch.no_grad():
    theirs = model(input_ids=tokens[: ours.shape[0]]).logits.float()
difference = (ours - theirs).abs().max().item()
print(
    f"{type(model).__name__}, transformers {transformers.__version__}, logits {tuple(ours.shape)} up to "
    f"{theirs.abs().max().item():.3f}: largest difference {difference:.3e} (limit {LIMIT:.0e})"
)
sys.exit(difference > LIMIT)

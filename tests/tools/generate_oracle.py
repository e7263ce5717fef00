"""The texts that transformers generates; tests/e2e/generate.sh compares launch/generate with them.

    generate_oracle.py text MODEL COUNT <TEXTS
    generate_oracle.py chat MODEL COUNT <TURNS

Prints, for each line, the line and its continuation, or the answer to this turn of a chat, by the most likely tokens.
"""
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def main():
    kind, path, count = sys.argv[1], sys.argv[2], int(sys.argv[3])
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    messages = []
    for line in sys.stdin.read().splitlines():
        messages.append({"role": "user", "content": line})
        if kind == "chat":
            tokens = list(tokenizer.apply_chat_template(messages, tokenize=True, return_dict=True, add_generation_prompt=True)["input_ids"])
        else:
            tokens = tokenizer(line)["input_ids"]
        with torch.no_grad():
            made = model.generate(torch.tensor([tokens]), max_new_tokens=count, do_sample=False, pad_token_id=0)[0].tolist()
        text = tokenizer.decode(made, skip_special_tokens=True)[len(tokenizer.decode(tokens, skip_special_tokens=True)) :]
        messages.append({"role": "assistant", "content": text})
        print(text if kind == "chat" else line + text)


main()

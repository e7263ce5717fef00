"""The texts that transformers generates, and the answers that it gives; tests/e2e/generate.sh compares the launch scripts with them.

    generate_oracle.py text MODEL COUNT <TEXTS
    generate_oracle.py chat MODEL COUNT <TURNS
    generate_oracle.py choices MODEL QUESTIONS RESULTS

text and chat print, for each line, the line and its continuation, or the answer to this turn of a chat, by the most likely tokens.
choices compares the RESULTS of launch/evaluate with the formulas of lm-eval's multiple-choice tasks.
"""
import json
import sys

import torch
from transformers import AutoModelForCausalLM, AutoTokenizer


def score(model, tokenizer, question, choice):
    plain = lambda text: tokenizer(text, add_special_tokens=False)["input_ids"]
    whole, count = plain(f"{question} {choice}"), len(plain(question.rstrip()))
    with torch.no_grad():
        logits = model(torch.tensor([whole[:-1]])).logits[0].double().log_softmax(-1)
    return sum(logits[i - 1, whole[i]].item() for i in range(count, len(whole)))


def compare_choices(model, tokenizer, questions, results):
    """Ends with an error unless the results are those of the formulas."""
    right, by_length, losses = [], [], []
    for question in map(json.loads, open(questions, encoding="utf-8")):
        choices, answer = question["choices"], question["answer"]
        scores = [score(model, tokenizer, question["question"], choice) for choice in choices]
        norm = [value / len(choice) for value, choice in zip(scores, choices)]
        right.append(max(range(len(choices)), key=scores.__getitem__) == answer)
        by_length.append(max(range(len(choices)), key=norm.__getitem__) == answer)
        losses.append(-scores[answer])
    got = json.load(open(results))[questions]
    mean = lambda values: sum(values) / len(values)
    for name, want in (("questions", len(right)), ("acc", mean(right)), ("acc_norm", mean(by_length)), ("loss", mean(losses))):
        if abs(got[name] - want) > 1e-5 * abs(want):
            sys.exit(f"{name} is {got[name]}, not {want}")


def main():
    kind, path = sys.argv[1:3]
    tokenizer = AutoTokenizer.from_pretrained(path)
    model = AutoModelForCausalLM.from_pretrained(path, dtype=torch.float32, attn_implementation="eager").eval()
    if kind == "choices":
        compare_choices(model, tokenizer, *sys.argv[3:])
        return
    messages, count = [], int(sys.argv[3])
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

"""Random chats and completions, whose masks by launch/tokenize are compared with trl's; tests/parity/masks runs it.

make DIRECTORY      writes five tokenizers, each with three chat templates, as DIRECTORY/TOKENIZER-TEMPLATE, and records for each
compare DIRECTORY   compares the datasets of these records with the labels of trl's SFTTrainer
"""
import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path[:0] = ["launch/dataset", "tests/tools"]
from token_files import read_documents  # noqa: E402
from token_oracle import CHAT, fuzzed, masks  # noqa: E402

TOKENIZERS = ("bpe", "begin", "close", "unigram", "wordpiece")
TEMPLATES = {"plain": None, "think": "qwen3_5_think_training", "llama": "llama3_training"}  # the template's file in trl; None: CHAT
FORMS = ("chats", "texts", "turns")
COUNT = 12  # records for each tokenizer, template and form, so 540 in all
SPECIAL = [
    "<unk>", "<s>", "</s>", "<u>", "<a>", "<e>", "<|im_start|>", "<|im_end|>", "<think>", "</think>", "<|begin_of_text|>",
    "<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>",
]  # fmt: skip
ENDS = {"plain": "<e>", "think": "<|im_end|>", "llama": "<|eot_id|>"}


def tokenizer_of(name):
    with open("LICENSE", encoding="utf-8") as file:
        text = file.read().splitlines()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if name == "unigram":
        model, trainer = models.Unigram(), trainers.UnigramTrainer(vocab_size=600, special_tokens=SPECIAL, unk_token="<unk>")
    elif name == "wordpiece":
        model, trainer = models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=600, special_tokens=SPECIAL)
    else:
        model, trainer = models.BPE(), trainers.BpeTrainer(vocab_size=600, special_tokens=SPECIAL, initial_alphabet=alphabet)
    made = Tokenizer(model)
    made.pre_tokenizer = {"unigram": pre_tokenizers.Metaspace, "wordpiece": pre_tokenizers.Whitespace}.get(name, pre_tokenizers.ByteLevel)()
    if isinstance(model, models.BPE):
        made.decoder = decoders.ByteLevel()
    made.train_from_iterator(text, trainer)
    around = {"begin": "<s> $A", "close": "<s> $A </s>"}.get(name)
    if around:
        made.post_processor = processors.TemplateProcessing(
            single=around, special_tokens=[(token, made.token_to_id(token)) for token in ("<s>", "</s>")]
        )
    return made


def template_of(name):
    if TEMPLATES[name] is None:
        return CHAT
    import trl

    with open(os.path.join(os.path.dirname(trl.__file__), "chat_templates", TEMPLATES[name] + ".jinja"), encoding="utf-8") as file:
        return file.read()


def answer(rng):
    """Text that begins inside a word or with space, as often as not; some answers think first."""
    text = "x" + fuzzed(rng)
    begin = rng.choice(["", " ", "b", "<think>\nwhy\n</think>\n\n"])
    return begin + text


def record(rng, form):
    turns = [{"role": role, "content": answer(rng)} for _ in range(1 + rng.randrange(3)) for role in ("user", "assistant")]
    if form == "chats":
        return {"messages": turns}
    if form == "turns":
        return {"prompt": turns[:-1], "completion": turns[-1:]}
    return {"prompt": fuzzed(rng) + rng.choice(["x ", "x", "word"]), "completion": answer(rng)}


def combinations():
    return [(name, template) for name in TOKENIZERS for template in TEMPLATES]


def make(directory):
    rng = random.Random(1)
    for name, template in combinations():
        home = f"{directory}/{name}-{template}"
        os.makedirs(home)
        tokenizer_of(name).save(f"{home}/tokenizer.json")
        config = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": ENDS[template], "chat_template": template_of(template)}
        with open(f"{home}/tokenizer_config.json", "w", encoding="utf-8") as file:
            json.dump(config, file)
        for form in FORMS:
            with open(f"{home}/{form}.jsonl", "w", encoding="utf-8") as file:
                file.writelines(json.dumps(record(rng, form)) + "\n" for _ in range(COUNT))


def labels_of_trl(home, form):
    """The (tokens, mask) of each record by trl."""
    from datasets import Dataset
    from transformers import AutoTokenizer, Qwen3Config, Qwen3ForCausalLM
    from trl import SFTConfig, SFTTrainer

    tokenizer = AutoTokenizer.from_pretrained(home, local_files_only=True)
    tokenizer.pad_token = "<unk>"
    model = Qwen3ForCausalLM(
        Qwen3Config(vocab_size=len(tokenizer), hidden_size=8, intermediate_size=8, num_hidden_layers=1, num_attention_heads=1,
                    num_key_value_heads=1, head_dim=8)
    )  # fmt: skip
    with open(f"{home}/{form}.jsonl", encoding="utf-8") as file:
        records = [json.loads(line) for line in file]
    how = SFTConfig(
        output_dir=f"{home}/trl", report_to=[], use_cpu=True, bf16=False, max_length=None, assistant_only_loss=form == "chats",
        completion_only_loss=form != "chats",
    )  # fmt: skip
    trainer = SFTTrainer(model=model, args=how, train_dataset=Dataset.from_list(records), processing_class=tokenizer)
    return [(list(row["input_ids"]), [int(label != -100) for label in row["labels"]]) for row in trainer.train_dataset]


def without_ends(pair, ends):
    """The tokens and mask of a text without the end tokens behind it, which trl puts before a tokenizer's closing token."""
    tokens, mask = pair
    while tokens and tokens[-1] in ends:
        tokens, mask = tokens[:-1], mask[:-1]
    return tokens, mask


def compare(directory):
    equal = 0
    for name, template in combinations():
        home = f"{directory}/{name}-{template}"
        for form in FORMS:
            found = list(read_documents(f"{home}/{form}"))
            ours = list(zip(found, masks(f"{home}/{form}", found), strict=True))
            closes = form == "texts" and name == "close"
            ends = [SPECIAL.index(token) for token in ("</s>", ENDS[template])] if closes else []
            for i, (one, other) in enumerate(zip(ours, labels_of_trl(home, form), strict=True)):
                if without_ends(one, ends) != without_ends(other, ends):
                    sys.exit(f"{home}/{form}, record {i}: {one}, but trl has {other}")
                equal += 1
    print(f"{equal} records have the tokens and masks of trl")


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](sys.argv[2])

"""Compares launch/tokenize with the libraries themselves; tests/e2e/tokenize.sh runs it, one step at a time.

make DIRECTORY      trains a BPE, a Unigram and a WordPiece tokenizer, and writes documents, chats and Parquet
compare DIRECTORY   compares the datasets with the tokenizers, pyarrow and transformers
"""
import gzip
import json
import os
import random
import sys

from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

sys.path.insert(0, "launch/dataset")
from token_files import read_documents  # noqa: E402

COUNT = int(os.environ.get("DOCUMENTS", "2000"))
CHAT = (
    "{% for m in messages %}{% if m['role'] == 'assistant' %}<a>{% generation %}{{ m['content'] }}<e>{% endgeneration %}"
    "{% else %}<u>{{ m['content'] }}<e>{% endif %}{% endfor %}{% if add_generation_prompt %}<a>{% endif %}"
)


def train(directory):
    text = open("LICENSE", encoding="utf-8").read().splitlines()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    special = ["<unk>", "<u>", "<a>", "<e>"]
    kinds = {
        "bpe": (models.BPE(), trainers.BpeTrainer(vocab_size=600, special_tokens=special, initial_alphabet=alphabet)),
        "unigram": (models.Unigram(), trainers.UnigramTrainer(vocab_size=600, special_tokens=special, unk_token="<unk>")),
        "wordpiece": (models.WordPiece(unk_token="<unk>"), trainers.WordPieceTrainer(vocab_size=600, special_tokens=special)),
    }
    for name, (model, trainer) in kinds.items():
        tokenizer = Tokenizer(model)
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel() if name == "bpe" else pre_tokenizers.Whitespace()
        if name == "bpe":
            tokenizer.decoder = decoders.ByteLevel()
        tokenizer.train_from_iterator(text, trainer)
        os.makedirs(f"{directory}/{name}")
        tokenizer.save(f"{directory}/{name}/tokenizer.json")
    unmarked = CHAT.replace("{% generation %}", "").replace("{% endgeneration %}", "")
    late = CHAT.replace("<e>{% endgeneration %}", "{% endgeneration %}<e>")
    thinking = unmarked.replace("%}<a>{% endif", "%}<a><u>{% endif")  # <u> takes the place of <think>
    for name, template in (("chat", CHAT), ("unmarked", unmarked), ("late", late), ("thinking", thinking)):
        os.makedirs(f"{directory}/{name}")
        tokenizer = Tokenizer.from_file(f"{directory}/bpe/tokenizer.json")
        if name == "thinking":
            tokenizer.post_processor = processors.TemplateProcessing(single="$A <e>", special_tokens=[("<e>", tokenizer.token_to_id("<e>"))])
        tokenizer.save(f"{directory}/{name}/tokenizer.json")
        with open(f"{directory}/{name}/tokenizer_config.json", "w") as file:
            json.dump({"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<e>", "chat_template": template}, file)


def fuzzed(rng):
    """Text of any characters but surrogates, mixed with words."""
    words = open("LICENSE", encoding="utf-8").read().split()
    pieces = []
    for _ in range(rng.randrange(40)):
        code = rng.choice([rng.randrange(0x80), rng.randrange(0x800), rng.randrange(0x10000), rng.randrange(0x110000)])
        pieces.append(rng.choice(words) if rng.random() < 0.5 or 0xD800 <= code < 0xE000 else chr(code))
    return "".join(piece + rng.choice(["", " "]) for piece in pieces)


def chats(rng):
    for _ in range(50):
        turns = [{"role": role, "content": fuzzed(rng)} for _ in range(1 + rng.randrange(3)) for role in ("user", "assistant")]
        yield {"messages": turns}


def make(directory):
    import pyarrow
    import pyarrow.parquet

    rng = random.Random(1)
    train(directory)
    texts = [fuzzed(rng) for _ in range(COUNT)]
    lines = [json.dumps({"text": text}, ensure_ascii=i % 2 == 0) for i, text in enumerate(texts)]
    third = COUNT // 3
    os.makedirs(f"{directory}/corpus")
    with open(f"{directory}/corpus/a.jsonl", "w", encoding="utf-8") as file:
        file.write("\n".join(lines[:third]) + "\n\n")
    with gzip.open(f"{directory}/corpus/b.jsonl.gz", "wt", encoding="utf-8") as file:
        file.write("\n".join(lines[third : 2 * third]))
    table = pyarrow.table({"text": texts[2 * third :], "other": list(range(COUNT - 2 * third))})
    pyarrow.parquet.write_table(table, f"{directory}/corpus/c.parquet", row_group_size=100)
    with open(f"{directory}/texts.json", "w") as file:
        json.dump(texts, file)
    with open(f"{directory}/chats.jsonl", "w") as file:
        file.writelines(json.dumps(chat) + "\n" for chat in chats(rng))
    with open(f"{directory}/pairs.jsonl", "w") as file:
        file.writelines(json.dumps({"prompt": f"question {i} ", "completion": f"answer {i}"}) + "\n" for i in range(20))
    with open(f"{directory}/borders.jsonl", "w") as file:
        file.write(json.dumps({"prompt": "The licen", "completion": "se"}) + "\n")
        turns = [{"role": "user", "content": "why"}, {"role": "assistant", "content": "so"}]
        file.write(json.dumps({"prompt": turns[:1], "completion": turns[1:]}) + "\n")


def masks(name, documents):
    with open(name + ".mask.bin", "rb") as file:
        return [list(file.read(len(document))) for document in documents]


def compare(directory):
    from transformers import AutoTokenizer

    texts = json.load(open(f"{directory}/texts.json"))
    for name in ("bpe", "unigram", "wordpiece"):
        tokenizer = Tokenizer.from_file(f"{directory}/{name}/tokenizer.json")
        found = list(read_documents(f"{directory}/{name}-out"))
        assert found == [tokenizer.encode(text).ids for text in texts], name
    chat = AutoTokenizer.from_pretrained(f"{directory}/chat", local_files_only=True)
    found = list(read_documents(f"{directory}/chats-out"))
    expected = [
        chat.apply_chat_template(json.loads(line)["messages"], return_dict=True, return_assistant_tokens_mask=True)
        for line in open(f"{directory}/chats.jsonl")
    ]
    assert found == [each["input_ids"] for each in expected]
    assert masks(f"{directory}/chats-out", found) == [each["assistant_masks"] for each in expected]
    assert all(0 < sum(each["assistant_masks"]) < len(each["input_ids"]) for each in expected)
    license, turn = list(read_documents(f"{directory}/borders-out"))
    whole = Tokenizer.from_file(f"{directory}/thinking/tokenizer.json").encode("The license")
    assert license == whole.ids and license[-1] == chat.convert_tokens_to_ids("<e>")
    begin = next(i for i, (_, end) in enumerate(whole.offsets) if end > len("The licen"))
    assert masks(f"{directory}/borders-out", [license, turn]) == [
        [int(i >= begin) for i in range(len(license))],
        [int(i > turn.index(chat.convert_tokens_to_ids("<a>"))) for i in range(len(turn))],
    ]
    found = list(read_documents(f"{directory}/pairs-out"))
    end = chat.convert_tokens_to_ids("<e>")
    for i, (tokens, mask) in enumerate(zip(found, masks(f"{directory}/pairs-out", found), strict=True)):
        whole = chat(f"question {i} answer {i}", add_special_tokens=False, return_offsets_mapping=True)
        assert tokens == whole["input_ids"] + [end]
        assert mask == [int(after > len(f"question {i} ")) for _, after in whole["offset_mapping"]] + [1]


if __name__ == "__main__":
    {"make": make, "compare": compare}[sys.argv[1]](sys.argv[2])

"""Tokenizers and Megatron datasets, for encode.py and decode.py."""
import json
import os
import struct
from array import array

MAGIC = b"MMIDIDX\0\0"
TYPES = {"uint16": (8, "H"), "int32": (4, "i"), "uint8": (1, "B"), "int64": (5, "q")}


class Refusal(Exception):
    """An input that cannot be used; its text is the message."""


def read_json(path):
    """The object of a JSON file; {} if the file does not exist."""
    try:
        with open(path, encoding="utf-8") as file:
            return json.load(file)
    except FileNotFoundError:
        return {}
    except ValueError as error:
        raise Refusal(f"{path}: {error}") from None


def directory_of(tokenizer):
    return tokenizer if os.path.isdir(tokenizer) else os.path.dirname(tokenizer) or "."


def load_tokenizer(tokenizer):
    from tokenizers import Tokenizer

    path = os.path.join(tokenizer, "tokenizer.json") if os.path.isdir(tokenizer) else tokenizer
    if not os.path.isfile(path):
        raise Refusal(f"{path}: there is no such file")
    try:
        return Tokenizer.from_file(path)
    except Exception as error:
        raise Refusal(f"{path}: {error}") from None


def find_end(tokenizer, model):
    """The token after a document, by tokenizer_config.json, or None."""
    config = read_json(os.path.join(directory_of(tokenizer), "tokenizer_config.json"))
    token = config.get("eos_token")
    if isinstance(token, dict):
        token = token.get("content")
    end = None if token is None else model.token_to_id(token)
    if token is not None and end is None:
        raise Refusal(f"{tokenizer}: tokenizer_config.json names the end token {token}, which the tokenizer does not have; give --end")
    return end


def write_index(path, kind, lengths):
    """Writes an index in which each of the sequences is a document."""
    code, letter = TYPES[kind]
    width = array(letter).itemsize
    starts, at = array("q"), 0
    for length in lengths:
        starts.append(at)
        at += length * width
    with open(path, "wb") as file:
        file.write(MAGIC + struct.pack("<QBQQ", 1, code, len(lengths), len(lengths) + 1))
        lengths.tofile(file)
        starts.tofile(file)
        array("q", range(len(lengths) + 1)).tofile(file)


def read_documents(name):
    """Yields the tokens of each document of a dataset."""
    with open(name + ".idx", "rb") as file:
        head = file.read(34)
        if head[:9] != MAGIC or len(head) < 34:
            raise Refusal(f"{name}.idx: is no index of a Megatron dataset")
        _, code, sequences, entries = struct.unpack("<QBQQ", head[9:])
        letters = [letter for number, letter in TYPES.values() if number == code]
        if not letters:
            raise Refusal(f"{name}.idx: token type {code} is unknown")
        lengths, starts, first = array("i"), array("q"), array("q")
        for values, count in ((lengths, sequences), (starts, sequences), (first, entries)):
            values.fromfile(file, count)
    with open(name + ".bin", "rb") as file:
        for begin, end in zip(first, first[1:]):
            tokens = array(letters[0])
            for i in range(begin, end):
                file.seek(starts[i])
                tokens.fromfile(file, lengths[i])
            yield tokens.tolist()

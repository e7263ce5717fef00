"""A moert-generate that continues or scores the lines it gets, and the tokenizers of its model; for generate.py and evaluate.py."""
import os
import subprocess
import sys

from token_files import Refusal, load_tokenizer, read_json


class Bytes:
    """A tokenizer for models whose tokens are bytes."""

    def encode(self, text):
        return list(text.encode())

    plain = encode

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


class Pieces:
    """The tokenizer of a tokenizer.json."""

    def __init__(self, directory):
        self.tokenizer = load_tokenizer(directory)

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def plain(self, text):
        """The tokens without special ones at the start and the end."""
        return self.tokenizer.encode(text, add_special_tokens=False).ids

    def decode(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


def add_options(parser):
    parser.add_argument("train")
    parser.add_argument("--model")
    parser.add_argument("--tokenizer")
    parser.add_argument("--np", default="1")
    parser.add_argument("--hosts")


def read_config(model):
    if model is None:
        raise Refusal("--model is needed; see --help")
    config = read_json(os.path.join(model, "config.json"))
    if not config:
        raise Refusal(f"{model}: there is no config.json")
    return config


def find_tokenizer(options):
    directory = options.tokenizer or options.model
    config = read_config(options.model)
    if options.tokenizer is None and config.get("vocab_size") == 256 and not os.path.exists(os.path.join(directory, "tokenizer.json")):
        return Bytes()
    return Pieces(directory)


class Job:
    def __init__(self, options, words):
        command = [options.train, "--program", "moert-generate", "--np", options.np] + (["--hosts", options.hosts] if options.hosts else [])
        command += ["--", "--model", options.model, "--lines"] + words
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)

    def give(self, words):
        """Gives the job a line of words."""
        try:
            self.process.stdin.write((" ".join(map(str, words)) + "\n").encode())
        except BrokenPipeError:
            self.fail()

    def fail(self):
        """Ends with the status of the job, which has written a message."""
        sys.exit(self.process.wait() or 1)

    def words(self):
        """Yields the words of the next line that the job prints, as they come."""
        word = b""
        while True:
            byte = self.process.stdout.read(1)
            if byte == b"":
                self.fail()
            if byte not in b" \n":
                word += byte
                continue
            if word:
                yield word.decode()
            word = b""
            if byte == b"\n":
                return

    def finish(self):
        self.process.stdin.close()
        return self.process.wait()

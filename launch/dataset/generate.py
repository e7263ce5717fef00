"""Continues texts and chats with moert-generate; launch/generate --help describes it."""
import argparse
import os
import subprocess
import sys

from token_files import Refusal, load_tokenizer, read_json

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for the first bytes of a character


class Bytes:
    """A tokenizer for models whose tokens are bytes."""

    def encode(self, text):
        return list(text.encode())

    def decode(self, tokens):
        return bytes(tokens).decode(errors="replace")


class Pieces:
    """The tokenizer of a tokenizer.json."""

    def __init__(self, directory):
        self.tokenizer = load_tokenizer(directory)

    def encode(self, text):
        return self.tokenizer.encode(text).ids

    def decode(self, tokens):
        return self.tokenizer.decode(tokens, skip_special_tokens=True)


class Chat:
    """The turns so far, as tokens by the chat template."""

    def __init__(self, directory, system):
        from transformers import AutoTokenizer

        try:
            self.tokenizer = AutoTokenizer.from_pretrained(directory)
        except (ValueError, OSError):
            self.tokenizer = None
        if self.tokenizer is None or self.tokenizer.chat_template is None:
            raise Refusal(f"{directory}: there is no tokenizer with a chat template, which --chat needs")
        self.messages = [{"role": "system", "content": system}] if system is not None else []

    def ask(self, text):
        self.messages.append({"role": "user", "content": text})
        return list(self.tokenizer.apply_chat_template(self.messages, tokenize=True, return_dict=True, add_generation_prompt=True)["input_ids"])

    def answered(self, text):
        self.messages.append({"role": "assistant", "content": text})


def find_tokenizer(options):
    directory = options.tokenizer or options.model
    config = read_json(os.path.join(options.model, "config.json"))
    if not config:
        raise Refusal(f"{options.model}: there is no config.json")
    if options.tokenizer is None and config.get("vocab_size") == 256 and not os.path.exists(os.path.join(directory, "tokenizer.json")):
        return Bytes()
    return Pieces(directory)


def find_stops(model):
    """The end tokens of a model."""
    stops = []
    for name in ("config.json", "generation_config.json"):
        value = read_json(os.path.join(model, name)).get("eos_token_id")
        stops += [token for token in (value if isinstance(value, list) else [value]) if token is not None and token not in stops]
    return stops


def start(train, options, rest):
    words = [train, "--program", "moert-generate", "--np", options.np] + (["--hosts", options.hosts] if options.hosts else [])
    words += ["--", "--model", options.model, "--lines"] + rest
    stops = find_stops(options.model)
    if stops and not any(word.split("=")[0] in ("--stop", "--no-stops") for word in rest):
        words += ["--stop"] + [str(token) for token in stops]
    return subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0)


def read_tokens(job):
    """Yields the numbers of a line of the job's output as they come."""
    word = b""
    while True:
        byte = job.stdout.read(1)
        if byte == b"":
            sys.exit(job.wait() or 1)
        if byte not in b" \n":
            word += byte
            continue
        if word:
            yield int(word)
        word = b""
        if byte == b"\n":
            return


def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def continue_tokens(job, tokenizer, tokens, before):
    """Prints the text that follows the tokens, behind `before`, and returns it."""
    try:
        job.stdin.write((" ".join(map(str, tokens)) + "\n").encode())
    except BrokenPipeError:
        sys.exit(job.wait() or 1)
    # some tokenizers drop a space at the start of a text, so that the new tokens are decoded behind a few of the old ones
    old, made, shown = tokens[-8:], [], ""
    for token in read_tokens(job):
        if not made:
            say(before)
        made.append(token)
        text = tokenizer.decode(old + made)[len(tokenizer.decode(old)) :]
        if not text.endswith(UNFINISHED):
            say(text[len(shown) :])
            shown = text
    say("\n")
    return shown


def lines():
    """The lines of standard input, without empty ones; a terminal shows where to type."""
    while True:
        if sys.stdin.isatty():
            say("> ")
        line = sys.stdin.readline()
        if line == "":
            return
        if line.strip():
            yield line.rstrip("\n")


def main():
    parser = argparse.ArgumentParser(prog="generate", add_help=False, allow_abbrev=False)
    parser.add_argument("train")
    parser.add_argument("--model")
    parser.add_argument("--tokenizer")
    parser.add_argument("--prompt")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--system")
    parser.add_argument("--np", default="1")
    parser.add_argument("--hosts")
    options, rest = parser.parse_known_args()
    if options.model is None:
        raise Refusal("--model is needed; see --help")
    if options.chat and options.prompt is not None:
        raise Refusal("--prompt and --chat exclude each other; a chat reads its turns from standard input")
    if options.system is not None and not options.chat:
        raise Refusal("--system belongs to --chat")
    tokenizer = find_tokenizer(options)
    chat = Chat(options.tokenizer or options.model, options.system) if options.chat else None
    job = start(options.train, options, rest)
    for text in [options.prompt] if options.prompt is not None else lines():
        if chat is None:
            continue_tokens(job, tokenizer, tokenizer.encode(text), text)
        else:
            chat.answered(continue_tokens(job, tokenizer, chat.ask(text), ""))
    job.stdin.close()
    sys.exit(job.wait())


if __name__ == "__main__":
    try:
        main()
    except (Refusal, OSError) as error:
        sys.exit(f"generate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

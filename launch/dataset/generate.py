"""Continues texts and chats with moert-generate; launch/generate --help describes it."""
import argparse
import os
import sys

from model_job import Job, add_options, find_tokenizer
from token_files import Refusal, read_json

UNFINISHED = "\N{REPLACEMENT CHARACTER}"  # what a decoder gives for the first bytes of a character


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


def find_stops(model, words):
    """The option that gives the end tokens of a model, unless the words have one."""
    stops = []
    for name in ("config.json", "generation_config.json"):
        value = read_json(os.path.join(model, name)).get("eos_token_id")
        stops += [token for token in (value if isinstance(value, list) else [value]) if token is not None and token not in stops]
    given = any(word.split("=")[0] in ("--stop", "--no-stops") for word in words)
    return [] if given or not stops else ["--stop"] + [str(token) for token in stops]


def say(text):
    sys.stdout.write(text)
    sys.stdout.flush()


def continue_tokens(job, tokenizer, tokens, before):
    """Prints the text that follows the tokens, behind `before`, and returns it."""
    job.give(tokens)
    # some tokenizers drop a space at the start of a text, so that the new tokens are decoded behind a few of the old ones
    old, made, shown = tokens[-8:], [], ""
    for word in job.words():
        if not made:
            say(before)
        made.append(int(word))
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
    add_options(parser)
    parser.add_argument("--prompt")
    parser.add_argument("--chat", action="store_true")
    parser.add_argument("--system")
    options, rest = parser.parse_known_args()
    if options.chat and options.prompt is not None:
        raise Refusal("--prompt and --chat exclude each other; a chat reads its turns from standard input")
    if options.system is not None and not options.chat:
        raise Refusal("--system belongs to --chat")
    tokenizer = find_tokenizer(options)
    chat = Chat(options.tokenizer or options.model, options.system) if options.chat else None
    job = Job(options, rest + find_stops(options.model, rest))
    for text in [options.prompt] if options.prompt is not None else lines():
        if chat is None:
            continue_tokens(job, tokenizer, tokenizer.encode(text), text)
        else:
            chat.answered(continue_tokens(job, tokenizer, chat.ask(text), ""))
    sys.exit(job.finish())


if __name__ == "__main__":
    try:
        main()
    except (Refusal, OSError) as error:
        sys.exit(f"generate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

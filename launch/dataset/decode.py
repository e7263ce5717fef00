"""Prints the text of tokens; launch/detokenize --help describes it."""
import argparse
import itertools
import json
import sys

from token_files import Refusal, load_tokenizer, read_documents


def read_lines(file):
    for number, line in enumerate(file, 1):
        try:
            yield [int(token) for token in json.loads(line)]
        except (TypeError, ValueError):
            raise Refusal(f"line {number}: is no JSON array of tokens") from None


def main():
    parser = argparse.ArgumentParser(prog="detokenize", add_help=False)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--first", type=int, default=0)
    parser.add_argument("--count", type=int)
    parser.add_argument("--special", action="store_true")
    parser.add_argument("name")
    options = parser.parse_args()
    tokenizer = load_tokenizer(options.tokenizer)
    name = options.name
    for ending in (".bin", ".idx"):
        name = name.removesuffix(ending)
    documents = read_lines(sys.stdin) if options.name == "-" else read_documents(name)
    end = None if options.count is None else options.first + options.count
    for tokens in itertools.islice(documents, options.first, end):
        print(tokenizer.decode(tokens, skip_special_tokens=not options.special))


if __name__ == "__main__":
    try:
        main()
    except (Refusal, OSError, EOFError) as error:
        sys.exit(f"detokenize: {error}")

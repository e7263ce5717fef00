"""Answers multiple-choice questions with moert-generate; launch/evaluate --help describes it."""
import argparse
import json
import math
import sys

from model_job import Job, add_options, find_tokenizer, read_config
from token_files import Refusal


class Question:
    def __init__(self, place, record):
        try:
            self.text, self.choices, self.answer = record["question"], record["choices"], record["answer"]
            if not isinstance(self.text, str) or not all(isinstance(choice, str) and choice for choice in self.choices):
                raise TypeError
            if len(self.choices) < 2 or not isinstance(self.answer, int) or not 0 <= self.answer < len(self.choices):
                raise TypeError
        except (KeyError, TypeError):
            raise Refusal(
                f"{place}: expected a JSON object with the text `question`, at least two texts `choices`, and the index `answer` of the right one"
            ) from None


def read_questions(path):
    with open(path, encoding="utf-8") as file:
        for number, line in enumerate(file, 1):
            place = f"{path}, line {number}"
            try:
                record = json.loads(line)
            except ValueError as error:
                raise Refusal(f"{place}: {error}") from None
            yield Question(place, record)


def encode_pair(tokenizer, question, choice, most):
    """The tokens of a question, and those of its choice, divided as lm-eval does: by the number of tokens of the question alone."""
    whole, own = tokenizer.plain(f"{question} {choice}"), tokenizer.plain(question.rstrip())
    count = max(1, min(len(own), len(whole) - 1))
    left_out = max(0, len(whole) - most)
    if left_out >= count:
        raise Refusal(f"a choice of {len(whole) - count} tokens does not fit into the {most} tokens that the model sees")
    return whole[left_out:count], whole[count:]


class Sums:
    """The results of some questions."""

    def __init__(self):
        self.count = self.right = self.right_by_length = 0
        self.loss = 0.0

    def add(self, question, scores):
        by_length = [score / len(choice) for score, choice in zip(scores, question.choices)]
        self.count += 1
        self.right += scores.index(max(scores)) == question.answer
        self.right_by_length += by_length.index(max(by_length)) == question.answer
        self.loss -= scores[question.answer]

    def numbers(self):
        error = lambda right: math.sqrt(right / self.count * (1 - right / self.count) / max(self.count - 1, 1))
        return {
            "questions": self.count,
            "acc": self.right / self.count,
            "acc_stderr": error(self.right),
            "acc_norm": self.right_by_length / self.count,
            "acc_norm_stderr": error(self.right_by_length),
            "loss": self.loss / self.count,
        }


def main():
    parser = argparse.ArgumentParser(prog="evaluate", add_help=False, allow_abbrev=False)
    add_options(parser)
    parser.add_argument("--json")
    parser.add_argument("--questions", nargs="+", default=[])
    options, rest = parser.parse_known_args()
    tokenizer, most = find_tokenizer(options), read_config(options.model).get("max_position_embeddings", 1 << 30)
    if not options.questions:
        raise Refusal("--questions is needed; see --help")
    questions = {path: list(read_questions(path)) for path in options.questions}
    for path, asked in questions.items():
        if not asked:
            raise Refusal(f"{path}: there are no questions")
    job, results = Job(options, ["--score"] + rest), {}
    for path, asked in questions.items():
        sums = Sums()
        for question in asked:
            scores = []
            for choice in question.choices:
                before, after = encode_pair(tokenizer, question.text, choice, most)
                job.give(before + ["|"] + after)
                scores.append(float(list(job.words())[0]))
            sums.add(question, scores)
        results[path] = sums.numbers()
        r = results[path]
        print(
            f"{path}: {r['questions']} questions, acc {r['acc']:.4f} +- {r['acc_stderr']:.4f}, "
            f"acc_norm {r['acc_norm']:.4f} +- {r['acc_norm_stderr']:.4f}, loss of the right choice {r['loss']:.4f}",
            flush=True,
        )
    if options.json:
        with open(options.json, "w", encoding="utf-8") as file:
            json.dump(results, file, indent=2)
    sys.exit(job.finish())


if __name__ == "__main__":
    try:
        main()
    except (Refusal, OSError) as error:
        sys.exit(f"evaluate: {error}")
    except KeyboardInterrupt:
        sys.exit(130)

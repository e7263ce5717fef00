"""Makes a Megatron dataset of text; launch/tokenize --help describes it.

The inputs are cut into parts: ranges of lines, row groups, whole files. Processes tokenize parts in any order, each into files of its
own, which are renamed when they are complete. So an interrupted run goes on where it stopped, and the dataset, their concatenation,
does not depend on the order.
"""
import argparse
import gzip
import io
import json
import multiprocessing
import os
import re
import shutil
import sys
import time
from array import array

from token_files import TYPES, Refusal, directory_of, find_end, load_tokenizer, read_json, write_index

PART_BYTES = 32 << 20
BATCH = 256  # texts that a tokenizer gets at once
GENERATION = re.compile(r"\{%-?\s*generation\s*-?%\}")


# ---- inputs ----


def list_files(paths):
    for path in paths:
        if not os.path.isdir(path):
            yield path
            continue
        for directory, below, names in os.walk(path):
            below.sort()
            yield from (os.path.join(directory, name) for name in sorted(names))


def form_of(path):
    for ending in (".jsonl", ".jsonl.gz", ".jsonl.zst", ".parquet"):
        if path.endswith(ending):
            return ending[1:]
    return "text"


def cut(path):
    """Yields (form, path, first, end, bytes) of the parts of a file: bytes of lines, or row groups."""
    form, size = form_of(path), os.path.getsize(path)
    if form == "jsonl":
        for first in range(0, size, PART_BYTES):
            yield form, path, first, min(first + PART_BYTES, size), min(PART_BYTES, size - first)
    elif form == "parquet":
        groups = open_parquet(path).metadata.num_row_groups
        for group in range(groups):
            yield form, path, group, group + 1, size // groups
    else:
        yield form, path, 0, size, size


def open_parquet(path):
    try:
        import pyarrow.parquet
    except ImportError:
        raise Refusal(f"{path}: Parquet needs the package pyarrow (see --help)") from None
    try:
        return pyarrow.parquet.ParquetFile(path)
    except (OSError, pyarrow.ArrowException) as error:
        raise Refusal(f"{path}: {error}") from None


def open_lines(form, path):
    if form == "jsonl.gz":
        return gzip.open(path, "rb")
    if form == "jsonl.zst":
        try:
            import zstandard
        except ImportError:
            raise Refusal(f"{path}: zstd needs the package zstandard (see --help)") from None
        return io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(open(path, "rb"), closefd=True))
    return open(path, "rb")


def read_lines(form, path, first, end):
    """Yields (place, object) of the lines that begin in [first, end); of a compressed file, of all."""
    with open_lines(form, path) as file:
        at = 0
        if form == "jsonl":
            at = first
            if first > 0:  # a line that began before `first` belongs to the preceding part
                file.seek(first - 1)
                at = first - 1 + len(file.readline())
        while form != "jsonl" or at < end:
            line = file.readline()
            if not line:
                break
            place = f"{path}, byte {at}"
            at += len(line)
            if line.strip():
                try:
                    record = json.loads(line)
                except ValueError as error:
                    raise Refusal(f"{place}: is no JSON: {error}") from None
                if not isinstance(record, dict):
                    raise Refusal(f"{place}: is no JSON object")
                yield place, record


def read_records(part, field):
    """Yields (place, record) of a part, each a dictionary."""
    form, path, first, end, _ = part
    if form == "text":
        with open(path, "rb") as file:
            content = file.read()
        try:
            yield path, {field: content.decode()}
        except UnicodeDecodeError as error:
            raise Refusal(f"{path}: is no UTF-8: {error}") from None
    elif form == "parquet":
        table = open_parquet(path).read_row_group(first)
        for row, record in enumerate(table.to_pylist()):
            yield f"{path}, row group {first}, row {row}", record
    else:
        try:
            yield from read_lines(form, path, first, end)
        except (EOFError, gzip.BadGzipFile) as error:
            raise Refusal(f"{path}: {error}") from None


# ---- tokens ----


class Encoder:
    """Turns records into (tokens, mask); a mask of None counts every token."""

    def __init__(self, options):
        self.options = options
        self.model = load_tokenizer(options.tokenizer)
        self.end = options.end_id
        self.chat = None
        self.unlearned = None  # a special token that ends turns, but that the chat template does not count as generated

    def texts(self, texts):
        for encoding in self.model.encode_batch(texts):
            yield self.finish(encoding.ids)

    def finish(self, ids):
        return ids + [self.end] if self.end is not None and ids[-1:] != [self.end] else ids

    def load_chat(self, place):
        if self.chat is not None:
            return self.chat
        try:
            from transformers import AutoTokenizer
            import jinja2  # noqa: F401
        except ImportError:
            raise Refusal(f"{place}: messages need the packages transformers and jinja2 (see --help)") from None
        directory = directory_of(self.options.tokenizer)
        self.chat = AutoTokenizer.from_pretrained(directory, local_files_only=True)
        if self.chat.chat_template is None:
            raise Refusal(f"{directory}: the tokenizer has no chat template, which messages need")
        return self.chat

    def messages(self, place, messages):
        chat = self.load_chat(place)
        template = chat.get_chat_template()
        if not GENERATION.search(template):
            raise Refusal(
                f"{directory_of(self.options.tokenizer)}: its chat template has no {{% generation %}}, which marks what the assistant "
                "writes; add it around the assistant's messages"
            )
        result = chat.apply_chat_template(messages, tokenize=True, return_dict=True, return_assistant_tokens_mask=True)
        tokens, mask = list(result["input_ids"]), list(result["assistant_masks"])
        if 1 not in mask:
            raise Refusal(f"{place}: the assistant writes nothing, so no token would count as a target")
        self.note_end(tokens, mask)
        return tokens, mask

    def note_end(self, tokens, mask):
        """Notes a special token right behind the last token that counts: an end of turn that the model does not learn."""
        behind = len(mask) - mask[::-1].index(1)
        if behind < len(tokens) and tokens[behind] in self.chat.all_special_ids:
            self.unlearned = self.chat.convert_ids_to_tokens(tokens[behind])

    def completion(self, place, prompt, completion):
        """The completion begins at the first token in which the prompt alone differs from the whole, as in trl. So a token with
        characters of both counts, and a closing token or a generation prompt that the whole does not have hides nothing."""
        if isinstance(prompt, str) and isinstance(completion, str):
            before, whole = self.model.encode(prompt).ids, self.finish(self.model.encode(prompt + completion).ids)
        else:
            chat = self.load_chat(place)
            render = lambda messages, more: chat.apply_chat_template(messages, tokenize=False, add_generation_prompt=more)
            plain = lambda text: chat(text, add_special_tokens=False)["input_ids"]
            text = render(prompt + completion, False)
            if not text.startswith(render(prompt, False)):
                raise Refusal(f"{place}: the chat template writes another prompt if a completion follows, so the prompt's end is unknown")
            before, whole = plain(render(prompt, True)), plain(text)
        count = len(os.path.commonprefix([before, whole]))
        if count == len(whole) and completion:
            raise Refusal(f"{place}: no token of the completion would count as a target")
        return whole, [0] * count + [1] * (len(whole) - count)

    def example(self, place, record):
        try:
            if "messages" in record:
                return self.messages(place, record["messages"])
            return self.completion(place, record["prompt"], record["completion"])
        except Refusal:
            raise
        except Exception as error:  # any error that the template or the tokenizer raises
            raise Refusal(f"{place}: {error}") from None


def is_example(record):
    return "messages" in record or ("prompt" in record and "completion" in record)


def encode(encoder, records, field):
    """Yields (bytes of text, tokens, mask) of each record, in order."""
    texts = []

    def flush():
        if texts:
            yield from zip((len(text.encode()) for text in texts), list(encoder.texts(texts)), [None] * len(texts))
            texts.clear()

    for place, record in records:
        if is_example(record):
            yield from flush()
            tokens, mask = encoder.example(place, record)
            yield len(json.dumps(record, ensure_ascii=False).encode()), tokens, mask
            continue
        text = record.get(field)
        if not isinstance(text, str):
            raise Refusal(f"{place}: has no text in '{field}', no messages, and no prompt with a completion")
        try:
            text.encode()
        except UnicodeEncodeError:
            raise Refusal(f"{place}: its text is no Unicode: it has half of a surrogate pair") from None
        texts.append(text)
        if len(texts) == BATCH:
            yield from flush()
    yield from flush()


# ---- parts ----

encoder = None


def start_process(options):
    global encoder
    os.environ["TOKENIZERS_PARALLELISM"] = "false"
    os.environ.setdefault("TRANSFORMERS_VERBOSITY", "error")
    encoder = Encoder(options)


def name_of(options, index, ending):
    return os.path.join(options.parts, f"{index:06d}.{ending}")


def make_part(work):
    """Tokenizes part `index`; returns a message, or None."""
    options, index, part = work
    letter, limit = TYPES[options.kind][1], 1 << (8 * array(TYPES[options.kind][1]).itemsize - (options.kind == "int32"))
    lengths, text_bytes, masked = array("i"), 0, 0
    try:
        with open(name_of(options, index, "bin"), "wb") as tokens_file, open(name_of(options, index, "mask"), "wb") as mask_file:
            for count, tokens, mask in encode(encoder, read_records(part, options.field), options.field):
                if tokens and max(tokens) >= limit:
                    raise Refusal(f"{part[1]}: token {max(tokens)} does not fit in {options.kind}; use --type int32")
                array(letter, tokens).tofile(tokens_file)
                mask_file.write(bytes(mask) if mask is not None else b"\1" * len(tokens))
                masked += mask is not None
                lengths.append(len(tokens))
                text_bytes += count
        with open(name_of(options, index, "lengths"), "wb") as file:
            lengths.tofile(file)
        about = {"tokens": sum(lengths), "documents": len(lengths), "bytes": text_bytes, "masked": masked, "unlearned": encoder.unlearned}
        with open(name_of(options, index, "new"), "w") as file:
            json.dump(about, file)
        os.rename(name_of(options, index, "new"), name_of(options, index, "json"))
    except (Refusal, OSError) as error:
        return index, str(error)
    return index, None


class Progress:
    """One line of progress on stderr; without a terminal, one every ten seconds."""

    def __init__(self, total):
        self.total, self.done, self.new = total, 0, 0
        self.start = self.shown = time.monotonic()
        self.terminal = sys.stderr.isatty()

    def add(self, count, new=True):
        self.done += count
        self.new += count if new else 0
        now = time.monotonic()
        if now - self.shown < (0.2 if self.terminal else 10):
            return
        self.shown = now
        rate = self.new / (now - self.start)
        left = (self.total - self.done) / rate if rate > 0 else 0
        part = self.done / self.total if self.total else 1
        line = f"[{'=' * int(30 * part):30}] {100 * part:3.0f} %  {rate / 1e6:.1f} MB/s  {int(left) // 60}:{int(left) % 60:02d} left"
        print(("\r\033[K" if self.terminal else "") + line, end="" if self.terminal else "\n", file=sys.stderr, flush=True)

    def close(self):
        if self.terminal:
            print("\r\033[K", end="", file=sys.stderr, flush=True)


def begin_parts(options, parts):
    """Makes the directory of the parts. Removes parts of another job."""
    job = {
        "parts": [list(part) + [os.stat(part[1]).st_mtime_ns] for part in parts],
        "options": [options.tokenizer, options.field, options.end_id, options.kind],
        "tokenizer": os.stat(options.tokenizer).st_mtime_ns,
    }
    path = os.path.join(options.parts, "job.json")
    if os.path.isdir(options.parts) and read_json(path) != job:
        shutil.rmtree(options.parts)
    os.makedirs(options.parts, exist_ok=True)
    with open(path, "w") as file:
        json.dump(job, file)


def make_parts(options, parts):
    begin_parts(options, parts)
    progress = Progress(sum(part[4] for part in parts))
    left = [(options, i, part) for i, part in enumerate(parts) if not os.path.exists(name_of(options, i, "json"))]
    missing = {work[1] for work in left}
    for i, part in enumerate(parts):
        if i not in missing:
            progress.add(part[4], new=False)
    processes = min(options.processes, max(len(left), 1))
    with multiprocessing.get_context("spawn").Pool(processes, start_process, (options,)) as pool:
        for index, problem in pool.imap_unordered(make_part, left):
            if problem is not None:
                progress.close()
                raise Refusal(problem)
            progress.add(parts[index][4])
    progress.close()


def join(options, parts):
    """Joins the parts to the dataset; returns their sums."""
    about = [read_json(name_of(options, i, "json")) for i in range(len(parts))]
    sums = {key: sum(each[key] for each in about) for key in ("tokens", "documents", "bytes", "masked")}
    sums["unlearned"] = next((each["unlearned"] for each in about if each["unlearned"] is not None), None)
    outputs = [("bin", options.out + ".bin")] + ([("mask", options.out + ".mask.bin")] if sums["masked"] else [])
    lengths = array("i")
    for ending, path in outputs:
        with open(path + ".new", "wb") as target:
            for i in range(len(parts)):
                with open(name_of(options, i, ending), "rb") as source:
                    shutil.copyfileobj(source, target, 1 << 20)
    for i, each in enumerate(about):
        with open(name_of(options, i, "lengths"), "rb") as file:
            lengths.fromfile(file, each["documents"])
    write_index(options.out + ".idx.new", options.kind, lengths)
    if not sums["masked"] and os.path.exists(options.out + ".mask.bin"):
        os.remove(options.out + ".mask.bin")
    with open(options.out + ".dataset.json.new", "w") as file:
        json.dump({"vocabulary": options.vocabulary, "end": options.end_id}, file)
    for _, path in outputs + [("", options.out + ".dataset.json"), ("", options.out + ".idx")]:
        os.replace(path + ".new", path)
    shutil.rmtree(options.parts)
    return sums


def take_options():
    parser = argparse.ArgumentParser(prog="tokenize", add_help=False)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--out", required=True)
    parser.add_argument("--field", default="text")
    parser.add_argument("--end")
    parser.add_argument("--type", choices=["auto", "uint16", "int32"], default="auto")
    parser.add_argument("--processes", type=int, default=os.cpu_count())
    parser.add_argument("inputs", nargs="+")
    options = parser.parse_args()
    if options.processes < 1:
        parser.error("--processes: at least 1")
    model = load_tokenizer(options.tokenizer)
    if options.end is None:
        options.end_id = find_end(options.tokenizer, model)
    elif options.end == "none":
        options.end_id = None
    elif options.end.isdigit():
        options.end_id = int(options.end)
    else:
        options.end_id = model.token_to_id(options.end)
        if options.end_id is None:
            parser.error(f"--end {options.end}: the tokenizer has no such token; expected a token's number, its text, or none")
    options.vocabulary = 1 + max(model.get_vocab().values())
    options.kind = options.type if options.type != "auto" else "uint16" if options.vocabulary < 65500 else "int32"
    options.parts = options.out + ".parts"
    return options


def main():
    options = take_options()
    parts = [part for path in list_files(options.inputs) for part in cut(path)]
    if not parts:
        raise Refusal(f"{options.inputs[0]}: there is nothing to tokenize")
    began = time.monotonic()
    make_parts(options, parts)
    sums = join(options, parts)
    seconds = time.monotonic() - began
    end = "none" if options.end_id is None else options.end_id
    print(
        f"{options.out}: {sums['tokens']} tokens ({options.kind}) in {sums['documents']} documents, "
        f"{sums['bytes'] / max(sums['tokens'], 1):.2f} bytes per token, document end {end}, {seconds:.0f} s"
    )
    if sums["masked"]:
        print(f"{options.out}.mask.bin: {sums['masked']} examples; only the answers are targets")
    if sums["unlearned"] is not None:
        print(
            f"tokenize: warning: the chat template has {sums['unlearned']} behind what the assistant generates, so the model does not "
            "learn to end its turn; move it before {% endgeneration %}",
            file=sys.stderr,
        )


if __name__ == "__main__":
    try:
        main()
    except (Refusal, OSError) as error:
        sys.exit(f"tokenize: {error}")
    except KeyboardInterrupt:
        sys.exit("tokenize: interrupted; the same command continues the work")

"""The mutations that tests/tools/mutate tries: places of C code, and the texts that replace each of them."""
import bisect
import collections
import hashlib
import itertools
import os
import re
import tempfile

EXCLUDED = {  # files whose code does not run here
    "src/*/nvidia/*": "for NVIDIA's GPUs",
    "src/exchange/window/memory_nvidia.c": "for NVIDIA's GPUs",
    "kernels/*/nvidia/*": "for NVIDIA's GPUs",
    "kernels/lib/nvidia.h": "for NVIDIA's GPUs",
    "kernels/gemm/*_amx*.h": "for CPUs with AMX",
}
# the values that macros have here in conditions that select hardware (None: not defined); code that these exclude is not mutated
# either
HARDWARE = {name: [None] for name in "__NV_CL_C_VERSION __NVPTX__ __SPIR__ __SPIRV__ __SPIRV64__ __aarch64__ __INTEL_CLANG_COMPILER "
            "MOERT_FAST HAS_FP8 HAS_BF16 HAS_LAST_USE".split()}
HARDWARE |= {"MOERT_NVIDIA": [0], "AMX": [0], "DOT": [0, 1], "MOERT_CPU": [1], "__x86_64__": [1], "__linux__": [1], "__clang__": [1]}
# calls whose arguments stay as they are
KEPT = re.compile("(MOERT_(LOG|WARN|INFO|DEBUG|TRACE)|moert_log_write|_Static_assert|__attribute__|(__)?asm(__)?)$")

KINDS = "operator", "constant", "bound", "branch", "missing"
OTHERS = {"+": "-", "-": "+", "*": "/ +", "/": "*", "%": "/ *", "<<": ">>", ">>": "<<", "&": "|", "|": "&", "^": "|", "&&": "||",
          "||": "&&", "==": "!=", "!=": "==", "<": "> ==", "<=": "> ==", ">": "< ==", ">=": "< ==", "+=": "-=", "-=": "+=",
          "*=": "/=", "/=": "*=", "<<=": ">>=", ">>=": "<<=", "&=": "|=", "|=": "&="}
BOUNDS = {"<": "<=", "<=": "<", ">": ">=", ">=": ">"}
ASSIGNMENTS = "= += -= *= /= %= <<= >>= &= |= ^=".split()
KEYWORDS = set("return sizeof case default else goto do if for while switch break continue typedef UNROLL_FOR IN_ORDER_FOR".split())

TOKEN = re.compile(r"""(?P<space> (?:\s | \\\n | /\*.*?\*/ | //[^\n]*)+ )
    | (?P<string> (?:u8|[uUL])? "(?:\\.|[^"\\\n])*" ) | (?P<char> [uUL]? '(?:\\.|[^'\\\n])*' )
    | (?P<number> \.?\d (?:[eEpP][+-] | [\w.])* ) | (?P<name> [A-Za-z_]\w* )
    | (?P<sign> \.\.\. | <<= | >>= | -> | \+\+ | -- | << | >> | [-+*/%&|^=!<>]= | && | \|\| | \#\# | . )""", re.VERBOSE | re.DOTALL)
DIRECTIVE = re.compile(r"# *(\w*)((?:\\\n|/\*.*?\*/|[^\n])*)", re.DOTALL)

Token = collections.namedtuple("Token", "kind text start end")
Place = collections.namedtuple("Place", "file line start end before texts head tail")  # head, tail: text around the place
Mutant = collections.namedtuple("Mutant", "number kind place text")


def truths(condition):
    """The values that a condition of #if can have here. Only those that select hardware are evaluated."""
    condition = re.sub(r"/\*.*?\*/|\\\n", " ", condition, flags=re.DOTALL).strip()
    names = sorted(set(re.findall(r"[A-Za-z_]\w*", condition)) - {"defined"})
    if not HARDWARE.keys() & set(names):
        return {False, True}
    condition = re.sub(r"defined\s*\(?\s*(\w+)\s*\)?", r"defined_\1", condition)
    condition = re.sub(r"!(?!=)", "not ", condition).replace("&&", " and ").replace("||", " or ")
    found = set()
    for values in itertools.product(*(HARDWARE.get(name, [None, 0, 1, 32]) for name in names)):
        macros = {name: value or 0 for name, value in zip(names, values)}
        macros |= {"defined_" + name: value is not None for name, value in zip(names, values)}
        found.add(bool(eval(condition, {}, macros)))
    return found


def parts(text):
    """Lists of the tokens that run here: all but directives, then the body of each #define."""
    lists, branches, at = [[]], [], 0  # of each open #if: may this branch run, may a later branch run
    while at < len(text):
        match, runs = TOKEN.match(text, at), all(may_run for may_run, _ in branches)
        if match.group() == "#" and not text[text.rfind("\n", 0, at) + 1:at].strip():
            match = DIRECTIVE.match(text, at)
            word, rest = match.groups()
            if word in ("if", "ifdef", "ifndef"):
                values = truths({"if": "", "ifdef": "defined ", "ifndef": "!defined "}[word] + rest)
                branches.append([True in values, False in values])
            elif word in ("elif", "else"):
                values, later = truths(rest if word == "elif" else "1 or __clang__"), branches[-1][1]
                branches[-1] = [later and True in values, later and False in values]
            elif word == "endif":
                branches.pop()
            elif word == "define" and runs:
                body = at + re.match(r"# *define +\w+(\([^)]*\))?", match.group()).end()
                lists.append([Token(m.lastgroup, m.group(), m.start(), m.end()) for m in TOKEN.finditer(text, body, match.end())])
        elif runs:
            lists[0].append(Token(match.lastgroup, match.group(), match.start(), match.end()))
        at = match.end()
    return [without_kept([token for token in tokens if token.kind != "space"]) for tokens in lists]


def pairs_of(tokens):
    """For the index of each bracket, that of its partner."""
    pairs, opened = {}, []
    for i, token in enumerate(tokens):
        if token.text in ("(", "[", "{"):
            opened.append(i)
        elif token.text in (")", "]", "}") and opened:
            pairs[i] = opened.pop()
            pairs[pairs[i]] = i
    return pairs


def without_kept(tokens):
    pairs, left, i = pairs_of(tokens), [], 0
    while i < len(tokens):
        if KEPT.match(tokens[i].text):
            while i + 1 < len(tokens) and tokens[i + 1].text in ("volatile", "("):
                i = pairs.get(i + 1, i + 1)
        else:
            left.append(tokens[i])
        i += 1
    return left


def is_binary(text, tokens, i):
    """Whether an operator has two operands. The sources are formatted: others do not have spaces on both sides."""
    if not 0 < i < len(tokens) - 1 or not text[tokens[i].start - 1].isspace() or not text[tokens[i].end].isspace():
        return False
    left, right = tokens[i - 1], tokens[i + 1]
    return ((left.kind in ("number", "char", "name") and left.text not in KEYWORDS or left.text in (")", "]")) and
            (right.kind in ("number", "char", "name", "string") or right.text in "( * & + - ! ~ ++ --".split()))


def begins_statement(tokens, pairs, i):
    before = tokens[i - 1].text if i > 0 else "{"
    if before == ")":
        return tokens[pairs.get(i - 1, 1) - 1].text in KEYWORDS
    if before == ":":  # the colon ends a label, or is part of a conditional expression
        return i > 2 and tokens[i - 3].text in ("case", ";", "{", "}")
    return before in (";", "{", "}", "else", "do")


def removable_end(tokens, pairs, i):
    """The index of the semicolon after the call or assignment that begins at i; None if another statement does."""
    outer, at = [], i  # the tokens outside of brackets
    while at < len(tokens) and tokens[at].text != ";":
        if tokens[at].text in ("}", ")", "]") or tokens[at].text == "{" and tokens[at - 1].text != ")":
            return None
        outer.append(tokens[at])
        at = pairs.get(at, len(tokens)) + 1 if tokens[at].text in ("(", "[", "{") else at + 1
    words = [token.text for token in outer]
    if at >= len(tokens) or words[1:2] == [":"]:  # no semicolon; a label
        return None
    assigned = next((n for n, word in enumerate(words) if word in ASSIGNMENTS), None)
    for one, after in zip(outer[:assigned], outer[1:assigned]):
        if one.kind == "name" and (after.kind == "name" or after.text == "*"):  # a declaration
            return None
    is_call = outer[0].kind == "name" and words[-1] == "("
    counts = words[0] in ("++", "--") or words[-1] in ("++", "--")
    return at if assigned or is_call or counts else None


def changed_constants(number):
    match = re.fullmatch(r"(0|[1-9]\d*)([uUlL]*)", number)
    if not match:
        return [f"({number} + 1)", f"({number} - 1)"]
    return [f"{n}{match.group(2)}" for n in (int(match.group(1)) + 1, int(match.group(1)) - 1) if n >= 0]


def places_of(file, text):
    """Yields (kind, place) for all places of a file."""
    lines = [match.end() for match in re.finditer("\n", text)]
    for tokens in parts(text):
        pairs = pairs_of(tokens)

        def place(first, last, texts, before, after):  # of tokens
            start, end = tokens[first].start, tokens[last].end
            return Place(file, bisect.bisect_right(lines, start) + 1, start, end, text[start:end], texts,
                         text[tokens[max(first - before, 0)].start:start], text[end:tokens[min(last + after, len(tokens) - 1)].end])

        for i, (kind, word, _, _) in enumerate(tokens):
            before = [token.text for token in tokens[max(i - 2, 0):i]]
            if word in OTHERS and is_binary(text, tokens, i):
                yield "operator", place(i, i, OTHERS[word].split(), 3, 3)
                if word in BOUNDS:
                    yield "bound", place(i, i, [BOUNDS[word]], 3, 3)
            elif kind == "number" and before != ["while", "("]:
                yield "constant", place(i, i, changed_constants(word), 3, 2)
            elif word in ("true", "false"):
                yield "constant", place(i, i, ["false" if word == "true" else "true"], 3, 2)
            elif word == "else":
                yield "branch", place(i, i, ["else if (0)"], 1, 4)
            elif word in ("if", "while") and i + 1 in pairs and (pairs[i + 1] > i + 3 or tokens[i + 2].kind != "number"):
                condition = text[tokens[i + 2].start:tokens[pairs[i + 1] - 1].end]
                texts = [f"!({condition})", "0"] + (["1"] if word == "if" else [])  # while (1) would not end
                yield "branch", place(i + 2, pairs[i + 1] - 1, texts, 2, 1)
            if (kind == "name" and word not in KEYWORDS or word in ("*", "++", "--")) and begins_statement(tokens, pairs, i):
                end = removable_end(tokens, pairs, i)
                if end:
                    yield "missing", place(i, end - 1, [""], 0, 1)


def mutants(root, files, seed):
    """Draws mutants; ends when almost all draws are repeated."""
    places = collections.defaultdict(list)
    for file in files:
        with open(os.path.join(root, file), encoding="utf-8") as source:
            for kind, place in places_of(file, source.read()):
                places[kind].append(place)
    kinds, seen, draw = [kind for kind in KINDS if places[kind]], set(), 0
    while kinds and draw < 20 * len(seen) + 1000:
        digits = hashlib.sha256(f"{seed} {draw}".encode()).digest()
        kind, place, text = (int.from_bytes(digits[n:n + 8], "big") for n in (0, 8, 16))
        kind = kinds[kind % len(kinds)]
        place = places[kind][place % len(places[kind])]
        text = place.texts[text % len(place.texts)]
        draw += 1
        if (place.file, place.start, place.end, text) not in seen:
            seen.add((place.file, place.start, place.end, text))
            yield Mutant(len(seen), kind, place, text)


def mutated(text, mutant):
    """The text with a mutation. Lines keep their numbers, which messages contain."""
    place = mutant.place
    lines = "".join(re.findall(r" *\\?\n", place.before))
    return text[:place.start] + re.sub(r"\\?\n", " ", mutant.text) + lines + text[place.end:]


def title(mutant):
    def short(text):
        text = re.sub(r"/\*.*?\*/|//[^\n]*|\\\n", " ", mutant.place.head + text + mutant.place.tail, flags=re.DOTALL)
        text = " ".join(text.split())
        return text if len(text) <= 70 else text[:67] + "..."
    place = mutant.place
    return f"{mutant.number:4d}  {place.file}:{place.line}  {mutant.kind}  {short(place.before)}  ->  {short(mutant.text)}"


# ---- self-test ----

SAMPLE = """/* a + b */
#include "a + b.h"
#if A + 1 > 2
#define TWICE(x) ((x) * 2)
#endif
#ifdef __NVPTX__
int other = 1 + 2;
#else
static int f(const int *p, size_t n) { // n - 1
    int sum = -1, *q = &sum;
    if (n < 3 &&
        p->count)
        MOERT_WARN("n + %d", n - 1);
    else
        sum += 'a' * *p;
    g("1 + 2 \\" 3", sum);
    return (int)*q;
}
#endif
"""
PLACES = {
    "operator": [(11, "<", "> =="), (11, "&&", "||"), (15, "+=", "-="), (15, "*", "/ +"), (4, "*", "/ +")],
    "constant": [(10, "1", "2 0"), (11, "3", "4 2"), (4, "2", "3 1")],
    "bound": [(11, "<", "<=")],
    "branch": [(11, "n < 3 &&\n        p->count", "!(n < 3 &&\n        p->count) 0 1"), (14, "else", "else if (0)")],
    "missing": [(15, "sum += 'a' * *p", ""), (16, 'g("1 + 2 \\" 3", sum)', "")],
}


def self_test():
    found = collections.defaultdict(list)
    for kind, place in places_of("sample.c", SAMPLE):
        found[kind].append((place.line, place.before, " ".join(place.texts)))
    assert found == PLACES, dict(found)
    with tempfile.TemporaryDirectory() as root:
        with open(os.path.join(root, "sample.c"), "w", encoding="utf-8") as file:
            file.write(SAMPLE)
        drawn = list(mutants(root, ["sample.c"], 1))
        assert drawn == list(mutants(root, ["sample.c"], 1)) != list(mutants(root, ["sample.c"], 2))
    assert len(drawn) == 21 and {mutant.kind for mutant in drawn[:12]} == set(KINDS), drawn
    texts = {mutant.text: mutated(SAMPLE, mutant) for mutant in drawn}
    assert all(text.count("\n") == SAMPLE.count("\n") and text != SAMPLE for text in texts.values())
    assert "    if (!(n < 3 &&         p->count)\n)\n" in texts["!(n < 3 &&\n        p->count)"]
    assert "    else if (0)\n        sum" in texts["else if (0)"]

#!/usr/bin/env python3
"""Writes moert/_bindings.py: the structs, enumerations and functions of include/moert as tables.

The C compiler gives every fact: it expands the headers' macros, and a small program prints the sizes, the offsets and the
initialisers' bytes. The package needs no compiler; it compares its own layouts with these tables when it is imported.

    src/python/bindings.py            writes the tables
    src/python/bindings.py --check    fails if the headers have changed since
"""
import os
import pathlib
import re
import subprocess
import sys
import tempfile

HERE = pathlib.Path(__file__).resolve().parent
INCLUDE = HERE.parents[1] / "include"
TARGET = HERE / "moert" / "_bindings.py"
CC = os.environ.get("CC", "gcc").split()
# all that the headers use of MPI is the type MPI_Comm, a handle that every implementation passes in a register
MPI = "typedef struct MPI_Comm_handle *MPI_Comm;\n"
INITIALISERS = re.compile(r"#define (MOERT_[A-Z_]+_INIT)\s+(?:\\\s+)?MOERT_INIT\((\w+)")


def expand(directory):
    """The declarations of all headers after the preprocessor, without comments and attributes."""
    (directory / "mpi.h").write_text(MPI)
    source = directory / "all.c"
    # standard headers are not declared here: their types keep their names
    for name in ("stddef.h", "stdint.h", "stdbool.h"):
        (directory / name).write_text("")
    source.write_text("#define UINT32_MAX 4294967295U\n#include <moert/moert.h>\n")
    command = [*CC, "-E", "-P", "-nostdinc", f"-I{directory}", f"-I{INCLUDE}", str(source)]
    text = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    text = text.replace('__attribute__((visibility("default")))', "")
    return re.sub(r"\s+", " ", text)


def c_type(text):
    """A C type in the tables' words: no const, and every pointer but a string is `T *`."""
    words = re.sub(r"\b(const|struct|enum)\b", " ", text.replace("*", " * ")).split()
    if words == ["char", "*"]:
        return "string"
    return words[0] + (" " + "*" * words.count("*") if "*" in words else "")


def declarator(text):
    """(type, name) of `const moert_buffer *const *weights`; the name is empty in an unnamed argument."""
    if "(" in text:  # a pointer to a function
        return "function", re.search(r"\(\s*\*\s*(\w*)\s*\)", text).group(1)
    match = re.fullmatch(r"(.*?[\s*])(\w+)(\[.*\])?", text.strip())
    return c_type(match.group(1) + ("*" if match.group(3) else "")), match.group(2)


def fields(body):
    """[(name, type)] of the members of a struct; `float a, b` are two."""
    found = []
    for member in filter(None, map(str.strip, body.split(";"))):
        if "(" in member:
            kind, name = declarator(member)
            found.append((name, kind))
            continue
        first, *others = member.split(",")
        kind, name = declarator(first)
        found += [(name, kind)] + [(other.strip(" *"), kind) for other in others]
    return found


def arguments(text):
    """The types of a function's arguments."""
    parts = [part.strip() for part in re.split(r",(?![^(]*\))", text)]
    return [] if parts == ["void"] else [declarator(part)[0] for part in parts]


def parse(text):
    structs = {name: fields(body) for body, name in re.findall(r"typedef struct(?: \w+)? \{([^{}]*)\} (\w+);", text)}
    enums = {}
    for body, name in re.findall(r"typedef enum(?: \w+)? \{([^{}]*)\} (\w+);", text):
        enums[name] = [part.split("=")[0].strip() for part in body.split(",") if part.strip()]
    rest = re.sub(r"typedef [^;{]*(\{[^{}]*\})?[^;]*;", " ", text)
    functions = {}
    for result, name, inside in re.findall(r"([\w* ]+?[ *])(moert_\w+)\(((?:[^()]|\([^()]*\))*)\) ?;", rest):
        functions[name] = (c_type(result), arguments(inside))
    return structs, enums, functions


def measure(directory, structs, enums):
    """Asks the compiler: {struct: (size, default bytes, [offset])}, {enumerator: value}."""
    headers = "".join(path.read_text() for path in sorted((INCLUDE / "moert").glob("*.h")))
    initialisers = {kind: macro for macro, kind in INITIALISERS.findall(headers)}
    for name in ("stddef.h", "stdint.h", "stdbool.h"):
        (directory / name).unlink()
    lines = ["#include <moert/moert.h>", "#include <stdio.h>", "int main(void) {"]
    for name, members in structs.items():
        lines.append(f'printf("S {name} %zu", sizeof({name}));')
        lines += [f'printf(" %zu", offsetof({name}, {member}));' for member, _ in members]
        lines.append('printf("\\n");')
        if name in initialisers:
            lines.append(f"{{ static const {name} v = {initialisers[name]}; const unsigned char *b = (const void *)&v;")
            lines.append(f'printf("D {name}"); for (size_t i = 0; i < sizeof v; i++) if (b[i]) printf(" %zu:%d", i, b[i]);')
            lines.append('printf("\\n"); }')
    lines += [f'printf("E {value} %d\\n", (int){value});' for values in enums.values() for value in values]
    source, program = directory / "measure.c", directory / "measure"
    source.write_text("\n".join([*lines, "}"]))
    subprocess.run([*CC, f"-I{directory}", f"-I{INCLUDE}", "-o", str(program), str(source)], check=True)
    layouts, defaults, values = {}, {}, {}
    for line in subprocess.run([str(program)], check=True, capture_output=True, text=True).stdout.splitlines():
        kind, name, *numbers = line.split()
        if kind == "S":
            layouts[name] = [int(number) for number in numbers]
        elif kind == "D":
            defaults[name] = ", ".join(numbers)
        else:
            values[name] = int(numbers[0])
    return layouts, defaults, values


def tables(structs, enums, functions, layouts, defaults, values):
    version = [re.search(rf"VERSION_{part} (\d+)", (INCLUDE / "moert/version.h").read_text()).group(1)
               for part in ("MAJOR", "MINOR", "PATCH")]
    out = ['"""Written by bindings.py from include/moert; do not edit."""', f'VERSION = ({", ".join(version)})', "",
           "# name: (bytes, {offset: byte} of the initialiser, [(field, type, offset)])", "STRUCTS = {"]
    for name, members in structs.items():
        out.append(f'    "{name}": ({layouts[name][0]}, {{{defaults.get(name, "")}}}, [')
        out += [f'        ("{member}", "{kind}", {offset}),' for (member, kind), offset in zip(members, layouts[name][1:])]
        out.append("    ]),")
    out += ["}", "", "ENUMS = {"]
    for name, names in enums.items():
        out.append(f'    "{name}": {{')
        out += [f'        "{value}": {values[value]},' for value in names]
        out.append("    },")
    out += ["}", "", "# name: (result, [type of an argument])", "FUNCTIONS = {"]
    out += [f'    "{name}": ("{result}", {given!r}),'.replace("'", '"') for name, (result, given) in sorted(functions.items())]
    return "\n".join([*out, "}", ""])


def main():
    with tempfile.TemporaryDirectory() as name:
        directory = pathlib.Path(name)
        structs, enums, functions = parse(expand(directory))
        text = tables(structs, enums, functions, *measure(directory, structs, enums))
    if sys.argv[1:] == ["--check"]:
        if not TARGET.exists() or TARGET.read_text() != text:
            sys.exit("bindings: include/moert has changed; run src/python/bindings.py and commit moert/_bindings.py")
    else:
        TARGET.write_text(text)


main()

"""Finds libmoert and gives its functions, structs and enumerations to the other modules.

The first of these that exists is loaded: the library that MOERT_LIBRARY names, the one in the package's data, the one that
pkg-config knows, the one that the loader finds.
"""
import ctypes
import os
import pathlib
import re
import subprocess

from . import _bindings


class Error(RuntimeError):
    """A call of moert failed. The text is moert's message; `status` is a name such as "ERROR_USAGE"."""

    def __init__(self, message, status):
        super().__init__(message)
        self.status = status


_SCALARS = {
    "void": None, "bool": ctypes.c_bool, "int": ctypes.c_int, "unsigned": ctypes.c_uint, "float": ctypes.c_float,
    "double": ctypes.c_double, "size_t": ctypes.c_size_t, "ptrdiff_t": ctypes.c_ssize_t, "int32_t": ctypes.c_int32,
    "uint32_t": ctypes.c_uint32, "uint64_t": ctypes.c_uint64, "int64_t": ctypes.c_int64, "string": ctypes.c_char_p,
    # an int of MPICH or a pointer of Open MPI: both travel in a register of 64 bits
    "MPI_Comm": ctypes.c_void_p,
}


def _candidates():
    """(where the name comes from, library), best first."""
    if "MOERT_LIBRARY" in os.environ:
        yield "MOERT_LIBRARY", os.environ["MOERT_LIBRARY"]
        return
    for path in sorted(pathlib.Path(__file__).with_name("lib").glob("libmoert.so*")):
        yield "the package's data", str(path)
    try:
        asked = subprocess.run(["pkg-config", "--variable=libdir", "moert"], capture_output=True, text=True, check=False)
        if asked.returncode == 0 and asked.stdout.strip():
            yield "pkg-config", os.path.join(asked.stdout.strip(), "libmoert.so")
    except OSError:
        pass  # no pkg-config here
    yield "the loader", "libmoert.so.0"


def _load():
    tried = []
    for origin, name in _candidates():
        try:
            return ctypes.CDLL(name), name
        except OSError as error:
            tried.append(f"  {name} ({origin}): {error}")
    raise ImportError("moert: cannot load libmoert; set MOERT_LIBRARY to its file. Tried:\n" + "\n".join(tried))


class Struct(ctypes.Structure):
    """A struct of moert's headers. It starts with the values of its initialiser; `size` needs no care."""

    def __init__(self, **values):
        size, defaults, _ = _bindings.STRUCTS[type(self).__name__]
        initial = bytearray(size)
        for offset, byte in defaults.items():
            initial[offset] = byte
        ctypes.memmove(ctypes.byref(self), bytes(initial), size)
        for name, value in values.items():
            self.set(name, value)

    def set(self, name, value):
        """Sets a field; one of an enumeration also by its name in lower case, a struct by a dict."""
        kinds = {field: kind for field, kind, _ in _bindings.STRUCTS[type(self).__name__][2]}
        if name not in kinds:
            raise TypeError(f"{type(self).__name__} has no field '{name}'; it has {', '.join(kinds)}")
        if kinds[name] in _bindings.ENUMS:
            value = enumerator(kinds[name], value)
        elif isinstance(value, dict):
            target = getattr(self, name)
            if kinds[name] == "moert_quantizer" and not target.size:
                setattr(self, name, structs["moert_quantizer"]())
                target = getattr(self, name)
            for key, inner in value.items():
                target.set(key, inner)
            return
        elif isinstance(value, str):
            value = value.encode()
        setattr(self, name, value)


def _prefix(names):
    """The common prefix of an enumeration's names, up to an underscore."""
    prefix = os.path.commonprefix(list(names))
    return prefix[: prefix.rfind("_") + 1]


def enumerator(kind, value):
    """The number of an enumerator, given by its number or by its name: "bf16" of moert_precision, "e4m3" of moert_dtype."""
    if not isinstance(value, str):
        return int(value)
    names = _bindings.ENUMS[kind]
    prefix = _prefix(names)
    number = names.get(prefix + value.upper().replace("-", "_"))
    if number is None:
        known = ", ".join(name[len(prefix):].lower() for name in names)
        raise Error(f"{kind[6:]}: '{value}' is unknown; known are {known}", "ERROR_USAGE")
    return number


def enumerators(kind):
    """{name in lower case: number}, as enumerator() takes them."""
    names = _bindings.ENUMS[kind]
    prefix = _prefix(names)
    return {name[len(prefix):].lower(): number for name, number in names.items()}


structs = {}


def _kind(text):
    if text in _SCALARS:
        return _SCALARS[text]
    if text in _bindings.ENUMS:
        return ctypes.c_int
    if text in structs:
        return structs[text]
    return ctypes.c_void_p


def _define_structs():
    for name, (size, _, members) in _bindings.STRUCTS.items():
        fields = [(field, _kind(kind)) for field, kind, _ in members]
        made = structs[name] = type(name, (Struct,), {"_fields_": fields})
        offsets = [getattr(made, field).offset for field, _, _ in members]
        if ctypes.sizeof(made) != size or offsets != [offset for _, _, offset in members]:
            raise ImportError(f"moert: {name} is laid out differently on this machine; run bindings.py here")


def _define_functions(library, origin):
    for name, (result, arguments) in _bindings.FUNCTIONS.items():
        try:
            function = getattr(library, name)
        except AttributeError:
            raise ImportError(f"moert: {origin} has no {name}; this package needs moert {version()}") from None
        function.restype = _kind(result)
        function.argtypes = [_kind(kind) for kind in arguments]
        if result == "moert_status":
            function.errcheck = _check


def version():
    """The version of moert's headers from which the package was made."""
    return ".".join(map(str, _bindings.VERSION))


def _check(status, function, _):
    if status != 0:
        name = library.moert_status_name(status).decode()
        raise Error(library.moert_last_error().decode() or function.__name__, re.sub("^MOERT_", "", name))
    return status


_define_structs()
library, path = _load()
_define_functions(library, path)
if library.moert_version() // 100 != _bindings.VERSION[0] * 100 + _bindings.VERSION[1]:
    raise ImportError(f"moert: {path} is version {library.moert_version()}, the package is {version()}")

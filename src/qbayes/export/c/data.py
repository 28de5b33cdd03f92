"""Constants as C: arrays, written once however often they are used, and the bytes that each op takes."""

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from torch import Tensor

from qbayes.errors import BadInput

DEFAULT = "network"
LONGEST = 31  # characters that C99 tells apart in a name that a linker sees, less than our longest ending
_KEYWORDS = """
    auto break case char const continue default do double else enum extern float for goto if inline int long
    register restrict return short signed sizeof static struct switch typedef union unsigned void volatile
    while alignas alignof and asm bool catch class concept consteval constexpr constinit decltype delete
    dynamic_cast explicit export false friend mutable namespace new noexcept not nullptr operator or private
    protected public requires static_assert template this throw true try typeid typename using virtual
    wchar_t xor
"""


def check_name(name: str) -> str:
    """The prefix itself; refuses what is no identifier of C (or C++), or belongs to somebody else."""
    if not re.fullmatch(r"[A-Za-z][A-Za-z0-9_]*", name, re.ASCII) or name in _KEYWORDS.split():
        raise BadInput(
            "the name must be an identifier of C that starts with a letter and is no keyword",
            f"'{name}'",
            "use letters, digits and _, for example --name my_network",
        )
    if name.lower().startswith("qb_") or name.lower() in ("qb", "int8", "int16", "int32", "int64", "size"):
        raise BadInput(
            "the name must not be taken", f"'{name}', used by C or by our runtime", "choose another"
        )
    if len(name) > LONGEST:
        raise BadInput(f"the name must have at most {LONGEST} characters", f"{len(name)}", "shorten it")
    return name


def rename_prefix(template: str, name: str) -> str:
    """A template with ``network`` as its prefix, under another name."""
    renamed_text = re.sub(r"\bnetwork(?=_|\.[cho]\b|: )", name, template)
    # a definition on a command line, -DNETWORK_FLOAT, has no edge of a word before it.
    return re.sub(r"(?:\b|(?<=-D))NETWORK(?=_)", name.upper(), renamed_text)


def in_comment(text: str) -> str:
    """Words of a user's within a comment of C: nothing that ends it, nothing but plain characters."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("/", "|").replace("\\", "|").replace("@", "(at)").replace("??", "?")


_BYTES = {"uint8_t": 1, "int8_t": 1, "uint16_t": 2, "uint32_t": 4, "int32_t": 4, "int64_t": 8, "float": 4}
_LINE = 110
POINTER_BYTES = 4  # of the machines that this is for
_WORD_BYTES = 4  # where arrays begin there
# the structs of the runtime on such a machine: fields that are not named take their room too.
STRUCT_BYTES = {
    "qb_average": 40,
    "qb_geometry": 68,
    "qb_numbers": 88,
    "qb_scaling": 24,
    "qb_walk": 20,
    "qb_weights": 36,
    "qb_window": 52,
}


def number(value: int | float, kind: str) -> str:
    """A constant of that type: −2^31 and −2^63 have no literal of their own."""
    if kind == "float":
        return float(value).hex() + "f"
    whole = int(value)
    if kind == "int64_t":
        return f"(-INT64_C({-whole}))" if whole < 0 else f"INT64_C({whole})"
    if kind == "int32_t" and whole == -(1 << 31):
        return "INT32_MIN"
    return f"{whole}u" if kind.startswith("uint") and whole > (1 << 15) - 1 else str(whole)


def _lines(items: Iterable[str]) -> str:
    lines, line = [], ""
    for item in items:
        if len(line) + len(item) + 2 > _LINE:
            lines.append(line)
            line = ""
        line += f"{item}, "
    return "\n".join(f"    {text.rstrip()}" for text in [*lines, line] if text)


def _align(count: int) -> int:
    return -(-count // _WORD_BYTES) * _WORD_BYTES


class Data:
    """The constants of one network, in the order in which they are first used."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.bytes: Counter[str] = Counter()
        self._names: dict[tuple[str, tuple[int | float, ...]], str] = {}

    def array(self, owner: str, kind: str, values: Tensor | Sequence[int] | Sequence[float] | bytes) -> str:
        """The name of an array with these values; one that another op has already is shared."""
        held = values.flatten().tolist() if isinstance(values, Tensor) else list(values)
        key = kind, tuple(held)
        if key not in self._names:
            name = self._names[key] = f"c{len(self._names)}"
            body = _lines(number(value, kind) for value in held)
            self.texts.append(f"static const {kind} {name}[{len(held)}] = {{\n{body}\n}};")
            self.bytes[owner] += _align(_BYTES[kind] * len(held))
        return self._names[key]

    def pointers(self, owner: str, kind: str, name: str, arrays: Sequence[str]) -> None:
        """An array of arrays under a name of its own."""
        self.texts.append(f"static const {kind} *const {name}[{len(arrays)}] = {{{', '.join(arrays)}}};")
        self.bytes[owner] += POINTER_BYTES * len(arrays)

    def add_array(self, owner: str, kind: str, name: str, values: Sequence[int] | Sequence[float]) -> None:
        """An array under a name of its own."""
        body = _lines(number(value, kind) for value in values)
        self.texts.append(f"static const {kind} {name}[{len(values)}] = {{\n{body}\n}};")
        self.bytes[owner] += _align(_BYTES[kind] * len(values))

    def structs(self, owner: str, kind: str, name: str, rows: Sequence[Mapping[str, object]]) -> None:
        """An array of structs, given by the names of their fields."""
        body = ",\n".join(
            "    {" + ", ".join(f".{field} = {value}" for field, value in row.items()) + "}" for row in rows
        )
        self.texts.append(f"static const {kind} {name}[{len(rows)}] = {{\n{body},\n}};")
        self.bytes[owner] += STRUCT_BYTES[kind] * len(rows)

"""The prefix of everything that the C has under a global name."""

import re

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


def renamed(template: str, name: str) -> str:
    """A template with ``network`` as its prefix, under another name."""
    renamed_text = re.sub(r"\bnetwork(?=_|\.[cho]\b|: )", name, template)
    # a definition on a command line, -DNETWORK_FLOAT, has no edge of a word before it.
    return re.sub(r"(?:\b|(?<=-D))NETWORK(?=_)", name.upper(), renamed_text)


def in_comment(text: str) -> str:
    """Words of a user's within a comment of C: nothing that ends it, nothing but plain characters."""
    plain = "".join(c if c.isascii() and c.isprintable() else "?" for c in text)
    return plain.replace("/", "|").replace("\\", "|").replace("@", "(at)").replace("??", "?")

"""A study's specification as TOML again, to read, to copy and to run."""

import json
import re
from collections.abc import Mapping
from typing import Any

_WIDE = 100  # characters after which a list is broken into lines
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def toml_text(spec: Mapping[str, Any]) -> str:
    """TOML of tables of values: what ``tomllib`` reads from it is ``spec``. TOML has no null: left out."""
    plain = {
        name: value for name, value in spec.items() if not isinstance(value, Mapping) and value is not None
    }
    tables = {name: value for name, value in spec.items() if isinstance(value, Mapping)}
    parts = ["\n".join(_lines(plain))] if plain else []
    parts += ["\n".join([f"[{_key(name)}]", *_lines(content)]) for name, content in tables.items()]
    return "\n\n".join(parts) + "\n"


def _lines(content: Mapping[str, Any]) -> list[str]:
    return [f"{_key(name)} = {_broken(value)}" for name, value in content.items() if value is not None]


def _key(name: str) -> str:
    return name if _BARE.fullmatch(name) else _string(name)


def _string(words: str) -> str:
    # JSON's strings are TOML's basic strings, except for the delete character.
    return json.dumps(words, ensure_ascii=False).replace("\x7f", "\\u007f")


def _broken(value: Any) -> str:
    """A value at the right of a key: long lists stand one item a line."""
    text = _value(value)
    if not isinstance(value, list) or len(text) <= _WIDE:
        return text
    return "\n".join(["[", *(f"  {_value(item)}," for item in value), "]"])


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int | float):
        return repr(value)
    if isinstance(value, list | tuple):
        return f"[{', '.join(_value(item) for item in value)}]"
    if isinstance(value, Mapping):
        pairs = (f"{_key(name)} = {_value(item)}" for name, item in value.items() if item is not None)
        return f"{{{', '.join(pairs)}}}"
    return _string(str(value))

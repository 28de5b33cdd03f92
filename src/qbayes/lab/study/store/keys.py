"""Keys of stages: the start of a sha256 over canonical JSON of all that a stage depends on."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

STAGES = ("float", "quantised", "program", "scores")
# raised when the same values give another result: what was stored under the old version is made anew.
VERSIONS: Mapping[str, int] = {"float": 2, "quantised": 4, "program": 1, "scores": 2}
_DIGITS = 16
# how options are spelled in the hashed text. The keys of published results were made with these words, and
# stay what they are when an option gets another name.
_SPELLED: Mapping[str, str] = {
    "distill": "teacher",
    "mixup": "blend",
    "match_temperature": "match",
    "optimizer": "optimiser",
    "equalize": "equalise",
    "elementwise_bits": "between",
}


def canonical(value: Any) -> str:
    return json.dumps(value, sort_keys=True, ensure_ascii=False, allow_nan=False, separators=(",", ":"))


def digest(stage: str, values: Mapping[str, Any]) -> str:
    text = canonical({"stage": stage, "version": VERSIONS[stage], **_spell(values)})
    return hashlib.sha256(text.encode()).hexdigest()[:_DIGITS]


def _spell(value: Any) -> Any:
    """The value with the names of options as keys spell them."""
    if isinstance(value, Mapping):
        return {_SPELLED.get(name, name): _spell(inner) for name, inner in value.items()}
    return [_spell(inner) for inner in value] if isinstance(value, list | tuple) else value

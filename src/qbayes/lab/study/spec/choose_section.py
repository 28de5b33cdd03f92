"""The section ``choose`` of a run: by what, and among which values, held-out rows choose."""

from collections.abc import Mapping
from typing import Any

from qbayes.errors import BadInput, unknown_name

CHOOSE, BY, VALIDATION = "choose", "by", "validation"
OF_CHOICE = ("method", "training")
# lower is better in all of them; the first is the default.
SCORES_OF: Mapping[str, tuple[str, ...]] = {
    "regression": ("nll", "rmse", "crps"),
    "classification": ("nll", "error", "brier"),
}
MOST_CANDIDATES = 100


def check_choose(value: Any) -> None:
    """Raise unless ``value`` can stand under ``[run]`` as ``choose``.

    [run] may say how is chosen, and the axes among what: how many candidates there are, and what a method
    takes, is checked where the runs are planned.
    """
    given = _table(value, CHOOSE)
    for key in given:
        if key not in (BY, VALIDATION, *OF_CHOICE):
            raise unknown_name("key of choose", key, (BY, VALIDATION, *OF_CHOICE))
    scores = sorted({score for known in SCORES_OF.values() for score in known})
    if BY in given and given[BY] not in scores:
        raise unknown_name("score to choose by", str(given[BY]), scores)
    share = given.get(VALIDATION, 0.1)
    if isinstance(share, bool) or not isinstance(share, int | float) or not 0 < share < 1:
        raise BadInput(
            "choose: validation must be a share of the training rows, above 0 and below 1",
            f"{share!r}",
            "write validation = 0.1",
        )
    for section in OF_CHOICE:
        for key, values in _table(given.get(section, {}), f"{CHOOSE}.{section}").items():
            _check_values(f"{CHOOSE}.{section}.{key}", key, values)


def _check_values(where: str, key: str, values: Any) -> None:
    if key == "name":
        raise BadInput("a choice must stay with the run's method", where, "vary method in [axes]")
    if not isinstance(values, list) or not values:
        raise BadInput(f"{where} must be a list of values", f"{values!r}", f"write {key} = [0.1, 0.2]")


def _table(value: Any, name: str) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise BadInput(f"{name} must be a table", f"{value!r}", f"write {name} = {{…}}")
    return value

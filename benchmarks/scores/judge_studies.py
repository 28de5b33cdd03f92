"""The synthetic studies of ``judge_truths``: for each claim some in which it holds, and some in which not."""

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from judge_rows import BAYESIAN, CLEAN, LATENCY, METHODS, SHIFTS, Bits, Condition, Truth, runs, times, truth

HOLDS, CONTRARY, EQUAL = "holds", "does not hold", "no difference that matters"


# ---- claims of equality: C1, C9, C13


def _all(
    at: Mapping[Bits, Mapping[str, float]],
    methods: Sequence[str] = METHODS,
    base: Mapping[str, float] = CLEAN,
) -> list[Condition]:
    return [one for method in methods for one in runs(method, at, base)]


def _one_other(
    others: Mapping[Bits, Mapping[str, float]], base: Mapping[str, float] = CLEAN
) -> list[Condition]:
    """Nothing changes but for SGHMC."""
    same: dict[Bits, dict[str, float]] = {bits: {} for bits in others}
    return _all(same, METHODS[:-1], base) + runs("sghmc", others, base)


def _equality(
    bits: Bits, base: Mapping[str, float], lost: Mapping[str, float], name: str, margin: float
) -> list[Truth]:
    """``lost`` is far beyond the margin; in the barely ones ``name`` is just beside it."""
    names = [one for one in base if one == name or (one.startswith("rotation/") and one.endswith(f"/{name}"))]
    names = names if "rotation/1/ece" in base else [name]

    def beside(factor: float) -> dict[Bits, dict[str, float]]:
        return {bits: {one: base[one] * factor for one in names if one in base}}

    sign = -1 if name == "entropy" else 1
    return [
        truth("holds", HOLDS, _all({bits: {}}, base=base)),
        truth("contrary", CONTRARY, _one_other({bits: lost}, base)),
        truth("barely holds", HOLDS, _one_other(beside(1 + sign * 0.99 * margin), base)),
        truth("barely contrary", CONTRARY, _one_other(beside(1 + sign * 1.01 * margin), base)),
    ]


_UNDER_SHIFT = {**CLEAN, **SHIFTS}


# ---- collapse: C2, C3, C4


def _collapsing(
    widths: Mapping[str, Sequence[Bits]], falls: float, last: float, **columns: Any
) -> list[Condition]:
    """Runs that collapse with a chance of ``falls``, and of ``last`` the last method at its last width."""
    regression = str(columns["task"]).startswith("uci/")
    base = {"rmse": 3.0, "nll": 2.0} if regression else CLEAN
    fallen = {"rmse": 9.8} if regression else {"error": 0.85}
    given = {**columns, **({"target_deviation": 10.0} if regression else {})}
    found = [
        replace(one, fallen=fallen, falls=0.0 if one.bits is None else falls)
        for method, bits in widths.items()
        for one in runs(method, {width: {} for width in bits}, base, **given)
    ]
    return [*found[:-1], replace(found[-1], falls=last)]


def _collapses(widths: Mapping[str, Sequence[Bits]], **columns: Any) -> list[Truth]:
    collapsing = partial(_collapsing, widths, **columns)
    return [
        truth("holds", HOLDS, collapsing(1.0, 1.0), seeds=6),
        truth("contrary", CONTRARY, collapsing(0.0, 0.0), seeds=6),
        truth("barely holds", HOLDS, collapsing(0.51, 0.51), seeds=6),
        truth("barely contrary", CONTRARY, collapsing(1.0, 0.49), seeds=6),
    ]


def _masks(rounded: float, exact: float) -> list[Condition]:
    """MC dropout that collapses with such chances."""
    fallen = {"error": 0.85}
    own = [replace(one, fallen=fallen, falls=exact if one.bits else 0.0) for one in runs("mcd", {(8, 3): {}})]
    return [*own, Condition("mcd", (8, 3), CLEAN, {"scheme": "default, mask=product"}, fallen, rounded)]


# ---- claims of a direction: C5's half, C6, C7, C8, C12


def _slopes(**a_bit: float) -> list[Condition]:
    """Errors that rise by so much a bit, and from 8 bits on; methods that are not named rise as others do."""
    usual = a_bit.get("others", 0.0)
    return [
        one
        for method in METHODS
        for one in runs(
            method, {(n, n): {"error": 0.08 + a_bit.get(method, usual) * (8 - n)} for n in (8, 6, 5, 4, 3)}
        )
    ]


def _sides(activations: Mapping[str, float], weights: Mapping[str, float]) -> list[Condition]:
    """Errors at four bits of activations, and of weights."""
    return [
        one
        for method in METHODS
        for one in runs(
            method, {(8, 7): {}, (8, 4): {"error": activations[method]}, (4, 7): {"error": weights[method]}}
        )
    ]


def _same(value: float, **others: float) -> dict[str, float]:
    return dict.fromkeys(METHODS, value) | others


def _rises(pointwise: float, **bayesian: float) -> list[Condition]:
    """ECE under every shift, in float and at W8A7."""
    found = []
    for method in METHODS:
        size = pointwise if method == "pointwise" else bayesian.get(method, bayesian["others"])
        base = _UNDER_SHIFT | {name: size for name in SHIFTS if name.endswith("/ece")}
        found += runs(method, {(8, 7): {}}, base)
    return found


def _networks(simple: float, complex_one: float, **other: float) -> list[Condition]:
    """Errors at W4A4 of LeNet and of a ResNet on the same data; ``other`` methods of the ResNet differ."""
    return [
        one
        for method in METHODS
        for network, error in (("lenet", simple), ("resnet18", other.get(method, complex_one)))
        for one in runs(method, {(4, 4): {"error": error}}, network=network)
    ]


def _entropies(bayesian: float, pointwise: float) -> list[Condition]:
    """Entropy on confusion data at W4A7, of one Bayesian method (others stay) and of pointwise networks."""
    name = "confusion/entropy"
    objects: dict[str, Any] = {"task": "cifar10", "network": "resnet18"}
    others = [one for method in BAYESIAN[:-1] for one in runs(method, {(4, 7): {}}, **objects)]
    own = runs("sghmc", {(4, 7): {name: bayesian}}, **objects)
    return others + own + runs("pointwise", {(4, 7): {name: pointwise}}, **objects)


# ---- the rest: C10, C11


def _sizes(quantised: int, latency: float) -> list[Condition]:
    base = {**CLEAN, LATENCY: 8.0}
    return [
        Condition("mcd", None, base, {"bytes": 4000, "scheme": "float"}),
        Condition("mcd", (8, 8), {**base, LATENCY: latency}, {"bytes": quantised}),
    ]


def _ablation(rounded: float, fewer: float) -> list[Condition]:
    """Errors with rounded masks, and with ε of two bits; all else as with one bit and eight."""

    def scores(error: float) -> dict[str, float]:
        return {**CLEAN, "error": error, "nll": CLEAN["nll"] * error / CLEAN["error"]}

    found = runs("mcd", {(4, 4): {}}) + runs("bbb", {(4, 4): {}})
    found.append(Condition("mcd", (4, 4), scores(rounded), {"scheme": "default, mask=product"}))
    return [*found, Condition("bbb", (4, 4), scores(fewer), {"scheme": "default, noise=2"})]


_AT = {"pointwise": [(8, 3)], "sghmc": [(8, 3), (4, 7)]}
_OBJECTS = {method: [(8, 4), (8, 3), (3, 7)] for method in METHODS}
# Activations cost 20 points and weights 10 at four bits, of mcd and sghmc as the claim says.
_BY_SIDE = _same(0.2, mcd=0.3), _same(0.1, sghmc=0.15)
_EITHER = (CONTRARY, EQUAL)

STUDIES: Mapping[str, Sequence[Truth]] = {
    "C1": _equality((8, 7), CLEAN, {"error": 0.096}, "nll", 0.05),
    "C2": _collapses(_AT, task="uci/boston", network="mlp"),
    "C3": [
        truth("holds", HOLDS, _masks(1.0, 1.0), seeds=6),
        truth("contrary", CONTRARY, _masks(0.0, 0.0), seeds=6),
        truth("barely holds", HOLDS, _masks(0.51, 0.51), seeds=6),
        truth("barely contrary", CONTRARY, _masks(1.0, 0.49), seeds=6),
    ],
    "C4": _collapses(_OBJECTS, task="cifar10", network="resnet18"),
    "C5": [
        truth("holds", HOLDS, _entropies(1.0, 0.8)),
        truth("contrary", CONTRARY, _entropies(0.7, 0.8)),
        truth("barely holds", HOLDS, _entropies(0.901, 0.8)),
        truth("barely contrary", CONTRARY, _entropies(0.899, 0.8)),
        truth("no difference", EQUAL, _entropies(1.0, 1.0)),
        truth("barely a difference", HOLDS, _entropies(1.0, 0.949)),
    ],
    "C6": [
        truth("holds", HOLDS, _slopes(pointwise=0.01)),
        truth("contrary", CONTRARY, _slopes(pointwise=0.01, others=0.0, sghmc=0.02)),
        truth("barely contrary", _EITHER, _slopes(pointwise=0.01, others=0.0, sghmc=0.01001)),
        truth("no difference", EQUAL, _slopes(others=0.0)),
        truth("barely a difference", HOLDS, _slopes(pointwise=0.01, others=0.0, sghmc=0.00919)),
    ],
    "C7": [
        truth("holds", HOLDS, _sides(*_BY_SIDE)),
        truth("contrary", CONTRARY, _sides(_same(0.1, mcd=0.3), _same(0.2, sghmc=0.25))),
        truth("barely contrary", _EITHER, _sides(_same(0.2, mcd=0.3, bbb=0.3001), _BY_SIDE[1])),
        truth("no difference", EQUAL, _sides(_same(0.08), _same(0.08))),
        truth("barely a difference", HOLDS, _sides(_same(0.2, mcd=0.3, bbb=0.2959), _BY_SIDE[1])),
    ],
    "C8": [
        truth("holds", HOLDS, _rises(0.2, others=0.1)),
        truth("contrary", CONTRARY, _rises(0.2, others=0.1, sghmc=0.3)),
        truth("barely contrary", _EITHER, _rises(0.2, others=0.1, sghmc=0.2001)),
        truth("no difference", EQUAL, _rises(0.2, others=0.2)),
        truth("barely a difference", HOLDS, _rises(0.2, others=0.1, sghmc=0.1798)),
    ],
    "C9": _equality((8, 7), _UNDER_SHIFT, times(SHIFTS, nll=1.3), "nll", 0.1),
    "C10": [
        truth("holds", HOLDS, _sizes(1000, 2.0)),
        truth("contrary", CONTRARY, _sizes(2000, 2.0)),
        truth("barely holds", HOLDS, _sizes(1000, 3.99)),
        truth("barely contrary", CONTRARY, _sizes(1000, 4.01)),
    ],
    "C11": [
        truth("holds", HOLDS, _ablation(0.08, 0.12)),
        truth("contrary", CONTRARY, _ablation(0.06, 0.12)),
        truth("barely holds", HOLDS, _ablation(0.08 / 1.049, 0.12)),
        truth("barely contrary", CONTRARY, _ablation(0.08 / 1.051, 0.12)),
        truth("no difference", EQUAL, _ablation(0.08, 0.08)),
        truth("barely a difference", HOLDS, _ablation(0.08, 0.08 * 1.051)),
    ],
    "C12": [
        truth("holds", HOLDS, _networks(0.1, 0.3)),
        truth("contrary", CONTRARY, _networks(0.3, 0.1)),
        truth("barely contrary", _EITHER, _networks(0.1, 0.3, sghmc=0.0999)),
        truth("no difference", EQUAL, _networks(0.1, 0.1)),
        truth("barely a difference", HOLDS, _networks(0.1, 0.3, sghmc=0.1083)),
    ],
    "C13": _equality((8, 8), _UNDER_SHIFT, times(SHIFTS, entropy=0.7), "entropy", 0.1),
}

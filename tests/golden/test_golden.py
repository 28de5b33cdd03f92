"""The library answers as it did before: a part of the golden answers, or all of them in the full run.

Parts ``exact/…`` are compared bit by bit on any processor, the others where they were recorded; elsewhere
scores must be near, refusals the same, and C must give the reference's codes.
"""

import copy
import os
import warnings
from functools import cache
from typing import Any

import pytest

import needs
from golden import verbs
from golden.cases import EXACT, PARTS, STUDIES, answers
from golden.kept import differences, elsewhere, read
from parity.c_build import needs_compiler

pytestmark = [needs_compiler, *map(needs.installed, ("onnx", "onnxruntime", "openvino"))]
# for the short run: dense layers and convolutions of one axis and two, both kinds of task, every method.
SHORT = {"mlp_silu": "mcd", "mlp_tanh": "pointwise", "sequence": "bbb", "pools": "sghmc"}
OF_EACH = ("float", "W8A8 calibrated", "W4A4 trained")


@cache
def kept() -> dict[str, Any]:
    return read()


def check(part: str, only: tuple[str, ...] = ()) -> None:
    was, near = kept()["cases"][part], not part.startswith("exact/") and bool(elsewhere(kept()))
    found = answers(part, only)
    assert set(found) == set(only or was)
    assert differences(part, found, was, near=near) == []


@pytest.mark.parametrize("name", EXACT)
def test_answers_in_integers_are_the_same_on_every_processor(name: str) -> None:
    check(f"exact/{name}")


@pytest.mark.parametrize(("network", "method"), SHORT.items())
def test_a_network_answers_as_before(network: str, method: str) -> None:
    check(f"zoo/{network}/{method}", OF_EACH)


@pytest.mark.full
@pytest.mark.parametrize("network", verbs.NETWORKS)
def test_every_network_answers_as_before(network: str) -> None:
    for method in verbs.METHODS:
        check(f"zoo/{network}/{method}")


@pytest.mark.full
@pytest.mark.parametrize("name", STUDIES)
def test_a_study_finds_what_it_found_before(name: str) -> None:
    check(f"study/{name}")


def test_answers_are_of_this_place() -> None:
    """``make test-full`` on another processor fails here alone, and says how to compare bit by bit."""
    told = elsewhere(kept())
    assert not told or os.environ.get("QBAYES_SLOW") != "all", told
    if told:
        warnings.warn(told, stacklevel=1)


def test_every_part_is_kept() -> None:
    cases = kept()["cases"]
    assert set(cases) == set(PARTS)
    assert not kept()["commit"].endswith("+dirty")
    for network in verbs.NETWORKS:
        for method in verbs.METHODS:
            part = cases[f"zoo/{network}/{method}"]
            assert len(part) == 5
            assert all("refused" not in entry for entry in part.values())
            quantised = [entry for case, entry in part.items() if case != "float"]
            asked = {*verbs.BACKENDS, *verbs.RUNTIME_OF, "c"}
            assert all(asked <= set(entry) and entry["c"] == entry["codes"] for entry in quantised)


def changed(case: str, **answers: str | float) -> tuple[dict[str, Any], dict[str, Any]]:
    """The kept cases of a network with another answer to one of them, and as they are."""
    was = kept()["cases"]["zoo/mlp_silu/mcd"]
    found = copy.deepcopy(was)
    found[case] |= answers
    return found, was


@pytest.mark.parametrize(
    ("case", "answers", "everywhere"),
    [
        ("float", {"nll": 2.55746}, False),
        ("float", {"draws": "0" * 16}, False),
        ("W8A8 trained", {"onednn": "0" * 16}, False),
        ("float", {"nll": 3.1}, True),
        ("float", {"onnx": "BadInput"}, True),
        ("W8A8 trained", {"c": "0" * 16}, True),
        ("W8A8 trained", {"more": "0" * 16}, True),
    ],
)
def test_another_answer_is_told(case: str, answers: dict[str, str | float], everywhere: bool) -> None:
    """Where the answers were recorded every bit counts; elsewhere what no processor may change."""
    found, was = changed(case, **answers)
    assert len(differences("part", found, was)) == 1
    assert len(differences("part", found, was, near=True)) == int(everywhere)
    assert differences("part", was, was) == differences("part", was, was, near=True) == []


@pytest.mark.parametrize("near", [False, True])
def test_answers_that_are_missing_or_new_are_told(near: bool) -> None:
    _, was = changed("float")
    # without its answers, a case lacks each of them; C and the reference are not asked of a float network.
    assert len(differences("part", {**was, "float": {}}, was, near=near)) == len(was["float"])
    assert len(differences("part", {**was, "W2A2": was["float"]}, was, near=near)) == 1


def test_elsewhere_it_is_said_how_to_record() -> None:
    there = {**kept(), **dict.fromkeys(("processor", "torch"), "another")}
    told = elsewhere(there)
    assert kept()["commit"] in told
    assert "-m golden --record --to" in told
    assert "processor" in told

"""Presets are data: what the paper's file says is what a method gets, and a method need not be in it."""

import tomllib
from importlib import resources

import pytest

from qbayes.methods import METHODS
from qbayes.methods.base import DEFAULT, preset_names, presets_of
from qbayes.training.budget import Budget

FILE = resources.files("qbayes.methods").joinpath("presets", "paper.toml")


def test_names_are_those_of_the_files() -> None:
    assert preset_names() == (DEFAULT, "paper")


@pytest.mark.parametrize("name", sorted(METHODS))
def test_every_table_of_the_file_is_a_preset_of_its_method(name: str) -> None:
    tables = tomllib.loads(FILE.read_text(encoding="utf-8"))
    assert set(tables) <= set(METHODS)
    found = presets_of(name)
    assert {f"paper/{task}" for task in tables[name]} == set(found)
    for task, values in tables[name].items():
        preset = found[f"paper/{task}"]
        assert dict(preset.method) == values["method"]
        assert Budget.from_options(preset.budget).epochs == values["budget"]["epochs"]


def test_a_method_that_no_file_knows_has_none() -> None:
    assert presets_of("swag") == {}

"""A pytest plugin that notes for each test which lines of the source it runs: ``pytest -p mutants.plugin``.

A fixture that several tests share runs in the first of them; its lines are those of all that ask for it. What
a test starts as a process of its own is measured too: the process finds the test's name in its environment.
``MUTANTS_REACH`` names the folder that gets the measurements, with the settings of coverage in it.
"""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import coverage
import pytest

FOLDER = Path(os.environ["MUTANTS_REACH"])
SETTINGS = FOLDER / "coverage.ini"
TEST = "MUTANTS_TEST"

_measure = coverage.Coverage(config_file=str(SETTINGS), data_suffix=True)
_measure.start()


def _enter(context: str) -> str:
    """Whatever runs from now on is reached by ``context``, which is answered by the one before."""
    before = os.environ.get(TEST, "")
    # set here, not at import: workers of pytest measure themselves.
    os.environ[TEST], os.environ["COVERAGE_PROCESS_START"] = context, str(SETTINGS)
    _measure.switch_context(context)
    return before


def _name(fixture: Any) -> str:
    return f"fixture {fixture.baseid}::{fixture.argname}"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    before = _enter(item.nodeid)
    try:
        return (yield)
    finally:
        _enter(before)


@pytest.hookimpl(wrapper=True)
def pytest_fixture_setup(fixturedef: Any) -> Iterator[None]:
    if fixturedef.scope == "function":
        return (yield)
    before = _enter(_name(fixturedef))
    try:
        return (yield)
    finally:
        _enter(before)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: Any, call: Any) -> Iterator[None]:
    """One line for each part of a test: its outcome, its seconds and the shared fixtures that it asks for."""
    report = yield
    found = item._fixtureinfo.name2fixturedefs if call.when == "call" else {}
    shared = [_name(one) for ones in found.values() for one in ones if one.scope != "function"]
    line = {"test": item.nodeid, "outcome": report.outcome, "seconds": call.duration, "fixtures": shared}
    with (FOLDER / f"tests.{os.getpid()}.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line) + "\n")
    return report


def pytest_unconfigure() -> None:
    _measure.stop()
    _measure.save()

"""Options: a field is all there is of one. The command line, studies, keys and lists are derived from it."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pytest
import typer
from typer.main import get_command

import qbayes as qb
from qbayes.cli import main
from qbayes.cli.commands.list import options_table
from qbayes.cli.options import NOTHING, Given, with_options_of
from qbayes.errors import BadInput
from qbayes.lab.study.plan import stages
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.spec import sections
from qbayes.lab.study.spec.study import Study
from qbayes.options import RENAMED, SHARE, option, options_of
from qbayes.training.budget import Budget


@dataclass(frozen=True, kw_only=True)
class Smoothed(qb.FineTuning):
    """Fine-tuning with one option more, written here alone."""

    smoothing: float = option(0.0, "Share of every label that all classes get.", SHARE, omitted=0.0)


@dataclass(frozen=True, kw_only=True)
class Decayed(Budget):
    """A budget with one option more, written here alone."""

    decay: float = option(0.0, "Share of the weights that a step takes away.", SHARE)


def flags(kind: type, given: list[dict[str, Any]]) -> typer.Typer:
    app = typer.Typer()

    @app.command()
    @with_options_of(kind, "chosen")
    def command(chosen: Given = NOTHING, seed: int = 0) -> None:
        given.append({**chosen, "seed": seed})

    return app


@pytest.mark.parametrize(("kind", "name"), [(Smoothed, "smoothing"), (Decayed, "decay")])
def test_the_command_line_has_every_field(kind: type, name: str) -> None:
    given: list[dict[str, Any]] = []
    command = get_command(flags(kind, given))
    held = {option: parameter for parameter in command.params for option in parameter.opts}
    assert {f"--{field.replace('_', '-')}" for field in options_of(kind)} <= set(held)
    assert options_of(kind)[name].help in str(getattr(held[f"--{name}"], "help", ""))
    command(args=[f"--{name}", "0.25", "--no-compile", "--seed", "3"], standalone_mode=False)
    assert given == [{name: 0.25, "compile": False, "seed": 3}]


def run(**parts: Any) -> dict[str, Any]:
    plain = {"task": "digits", "network": "lenet", "method": "mcd", "precision": "W4A4"}
    return {**plain, **parts}


def test_a_study_has_every_option_of_fine_tuning(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(BadInput, match="smoothing"):
        Study.from_content({"run": run(quantize={"smoothing": 0.1})})
    monkeypatch.setattr(sections, "FineTuning", Smoothed)
    study = Study.from_content({"run": run(), "axes": {"quantize": {"smoothing": [0.0, 0.1, 0.2]}}})
    keys = [one.keys.quantised for one in make_plan(study, Tasks(None)).runs]
    assert len(set(keys)) == 3
    with pytest.raises(BadInput, match="smoothing must be a share"):
        Study.from_content({"run": run(quantize={"smoothing": 2})})
    # what is off leaves the keys that there were before.
    monkeypatch.undo()
    before = make_plan(Study.from_content({"run": run()}), Tasks(None)).runs[0].keys.quantised
    assert keys[0] == before


def test_a_study_has_every_option_of_the_budget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sections, "Budget", Decayed)
    monkeypatch.setattr(stages, "Budget", Decayed)
    study = Study.from_content({"run": run(), "axes": {"training": {"decay": [0.0, 0.1]}}})
    assert len({one.keys.float for one in make_plan(study, Tasks(None)).runs}) == 2


def test_what_is_resolved_is_recorded_and_told_apart() -> None:
    done = Smoothed(smoothing=0.1).resolve()
    assert done.to_json()["smoothing"] == done.to_key()["smoothing"] == 0.1
    assert "smoothing" not in Smoothed().resolve().to_key()
    assert done.of_stages("training")["smoothing"] == 0.1
    assert "smoothing" not in done.of_stages("calibration", "result")


def test_the_list_has_every_option() -> None:
    found = options_table(Smoothed)
    assert found["smoothing"] == {
        "summary": "Share of every label that all classes get.",
        "type": "float",
        "default": 0.0,
    }
    assert list(found) == list(options_of(Smoothed))


def test_fine_tuning_has_what_a_budget_has() -> None:
    both = options_of(qb.FineTuning)
    for name, described in options_of(Budget).items():
        assert both[name] is described


NAMES: Mapping[str, Any] = {
    "teacher": lambda: sections.fine_tuning_of({"teacher": 1.0}),
    "blend": lambda: sections.fine_tuning_of({"blend": 0.5}),
    "match": lambda: sections.check_section("quantize", {"match": True}),
    "equalise": lambda: sections.fine_tuning_of({"equalise": True}),
    "optimiser": lambda: qb.method("mcd", optimiser="sgd"),
    "quantise": lambda: sections.check_section("quantise", {}),
    "between": lambda: qb.Precision.parse({"between": 4}),
}


@pytest.mark.parametrize("old", NAMES)
def test_an_old_name_is_refused_with_the_new_one(old: str) -> None:
    with pytest.raises(BadInput) as refused:
        NAMES[old]()
    assert old in refused.value.got
    assert f"'{RENAMED[old]}'" in refused.value.do


def test_the_command_line_names_the_new_option(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["quantize", "float", "--out", "q", "--match"]) == 2
    told = capsys.readouterr().err
    assert "'--match'" in told
    assert "'--match-temperature'" in told


def test_every_old_name_is_tried() -> None:
    assert set(NAMES) == set(RENAMED)

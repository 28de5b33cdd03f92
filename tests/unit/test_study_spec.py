"""A study as written: what it means, and what is said where it is wrong."""

from pathlib import Path
from typing import Any

import pytest

from qbayes.errors import BadFile, BadInput
from qbayes.lab.study.spec.sections import training_of
from qbayes.lab.study.spec.study import Study

RUN = """
[run]
task = "digits"
network = {name = "lenet", style = "relu"}
method = {name = "mcd", rate = 0.2}
"""
SHIPPED = sorted((Path(__file__).parents[2] / "studies").glob("*.toml"))


def study(axes: str = "", run: str = RUN) -> Study:
    return Study.from_toml(f"{run}\n[axes]\n{axes}")


def places(axes: str, run: str = RUN) -> list[dict[str, object]]:
    return [dict(point.place) for point in study(axes, run).points()]


def test_a_run_alone_is_a_study_of_one_run() -> None:
    (point,) = Study.from_toml(RUN).points()
    assert point.place == {}
    assert point.run["seed"] == 0
    assert point.run["precision"] == "float"
    assert point.run["method"] == {"name": "mcd", "rate": 0.2}


def test_axes_span_their_product_the_first_slowest() -> None:
    assert places('seed = [0, 1]\nprecision = ["float", "W4A4"]') == [
        {"seed": 0, "precision": "float"},
        {"seed": 0, "precision": "W4A4"},
        {"seed": 1, "precision": "float"},
        {"seed": 1, "precision": "W4A4"},
    ]


def test_the_paper_grid_is_two_tables() -> None:
    found = places("precision = [{weight = 8, activation = [3, 4, 5]}, {weight = [3, 4], activation = 7}]")
    assert [place["precision"] for place in found] == ["W8A3", "W8A4", "W8A5", "W3A7", "W4A7"]


def test_a_table_merges_into_the_run_and_another_name_takes_its_place() -> None:
    runs = [
        p.run["method"] for p in study('method = ["bbb", {placement = "paper"}, {name = "mcd"}]').points()
    ]
    assert runs == ["bbb", {"name": "mcd", "rate": 0.2, "placement": "paper"}, {"name": "mcd", "rate": 0.2}]


def test_a_preset_stays_where_bits_vary() -> None:
    run = RUN + 'precision = {preset = "paper", weight = 8, activation = 7}\n'
    (one, two) = study("precision.weight = [3, 4]", run).points()
    assert one.run["precision"] == {"preset": "paper", "weight": 3, "activation": 7}
    assert two.place == {"precision.weight": 4}


def test_a_control_is_called_so_and_by_what_it_is_like() -> None:
    found = places('precision = ["float", {finetuned = ["W4A4", "W8A8"]}]')
    assert found == [
        {"precision": "float"},
        {"precision": "float-finetuned", "precision.finetuned": "W4A4"},
        {"precision": "float-finetuned", "precision.finetuned": "W8A8"},
    ]
    _, in_a_table = places('precision = ["W4A4", {finetuned = {weight = 4, activation = 8}}]')
    assert in_a_table["precision"] == "float-finetuned"
    assert in_a_table["precision.finetuned"] == '{"activation": 8, "weight": 4}'


def test_a_control_takes_the_place_of_bits_and_bits_that_of_a_control() -> None:
    axes = 'precision = [{weight = 4}, {finetuned = "W4A4"}]'
    bits, control = study(axes, RUN + "precision = {weight = 8, activation = 7}\n").points()
    assert bits.run["precision"] == {"weight": 4, "activation": 7}
    assert control.run["precision"] == {"finetuned": "W4A4"}
    bits, control = study(axes, RUN + 'precision = {finetuned = "W8A8"}\n').points()
    assert bits.run["precision"] == {"weight": 4}
    assert control.run["precision"] == {"finetuned": "W4A4"}


def test_two_keys_of_one_section_vary_together() -> None:
    found = [
        point.run["method"]
        for point in study("method.rate = [0.1, 0.3]\nmethod.weight_decay = [0.0, 0.1]").points()
    ]
    assert [(method["rate"], method["weight_decay"]) for method in found] == [
        (0.1, 0.0),
        (0.1, 0.1),
        (0.3, 0.0),
        (0.3, 0.1),
    ]


def test_joined_sections_vary_together_and_lists_inside_expand() -> None:
    axes = """
"method + training" = [
  {method = "pointwise", training = {epochs = 3}},
  {method = {name = "mcd", rate = [0.1, 0.2]}, training = {epochs = [4, 5]}},
]"""
    found = [(p.run["method"], p.run["training"]["epochs"]) for p in study(axes).points()]
    assert found == [
        ("pointwise", 3),
        ({"name": "mcd", "rate": 0.1}, 4),
        ({"name": "mcd", "rate": 0.1}, 5),
        ({"name": "mcd", "rate": 0.2}, 4),
        ({"name": "mcd", "rate": 0.2}, 5),
    ]


def test_a_table_of_an_axis_joins_sections_once_more() -> None:
    """What several rows share is written once; the runs are those of the rows written out, in their order."""
    bits = "{precision = {weight = 8, activation = %d}, quantize = {epochs = %s}}"
    within = ", ".join([bits % (8, 1), bits % (4, "[2, 3]")])
    nested = f"""
"method + precision + quantize" = [
  {{method = ["pointwise", "mcd"], "precision + quantize" = [{within}]}},
  {{method = "bbb", precision = "float", quantize = {{}}}},
]"""
    row = '{method = "%s", precision = {weight = 8, activation = %d}, quantize = {epochs = %d}},'
    rows = [row % (name, a, e) for name in ("pointwise", "mcd") for a, e in ((8, 1), (4, 2), (4, 3))]
    plain = '"method + precision + quantize" = [%s {method = "bbb", precision = "float", quantize = {}}]'
    assert list(study(nested).points()) == list(study(plain % " ".join(rows)).points())


@pytest.mark.parametrize(
    "table",
    [
        '{method = "mcd", "precision + quantize" = [{precision = "W8A8"}]}',
        '{method = "bbb", precision = "W4A4", "precision + quantize" = [{quantize = {}, precision = 8}]}',
        '{method = "mcd", "precision + seed" = [{precision = "W8A8", seed = 1}]}',
        '{method = "mcd", "precision + quantize" = [3]}',
        '{method = "mcd", "precision + quantize" = []}',
    ],
)
def test_sections_joined_in_a_table_are_each_named_once(table: str) -> None:
    with pytest.raises(BadInput):
        study(f'"method + precision + quantize" = [{table}]')


def test_a_key_whose_value_is_a_list_varies_over_a_list_of_lists() -> None:
    run = RUN.replace('{name = "lenet", style = "relu"}', '"mlp"')
    one = study('network = [{name = "mlp", hidden = [50, 50]}]', run).points()
    assert [point.run["network"]["hidden"] for point in one] == [[50, 50]]
    two = study('network = [{name = "mlp", hidden = [[50], [50, 50]]}]', run).points()
    assert [point.run["network"]["hidden"] for point in two] == [[50], [50, 50]]


WRONG = {
    "not TOML": ("[run\n", "a study must be TOML", "line 1"),
    "no run": ("[study]\nname = 'x'\n", "must have a [run]", ""),
    "part": (RUN + "[axis]\nseed = [0]\n", "known keys only", "axes"),
    "key of run": (RUN + 'metod = "mcd"\n', "[run]", "method"),
    "task": (RUN.replace('"digits"', '"digit"'), "[run] task", "digits"),
    "network": (RUN.replace('"lenet"', '"lenett"'), "[run] network", "lenet"),
    "option of the network": (RUN.replace("style", "styl"), "[run] network", "style"),
    "method": (RUN.replace('"mcd"', '"mdc"'), "[run] method", "mcd"),
    "option of the method": (RUN.replace("rate", "rates_"), "[run] method", "rates"),
    "value of the method": (RUN.replace("0.2", "1.5"), "dropout rate of mcd must be", "0.1"),
    "preset": (RUN.replace("rate = 0.2", 'preset = "papr"'), "preset", "paper"),
    "training": (RUN + "training = {epoch = 3}\n", "[run] training", "epochs"),
    "precision": (RUN + 'precision = "W9A8"\n', "[run] precision", "2"),
    "word for a precision": (RUN + 'precision = "8 bits"\n', "[run] precision", "W4A4"),
    "key of the precision": (RUN + "precision = {wight = 4}\n", "[run] precision", "weight"),
    "control without a precision": (
        RUN + 'precision = "float-finetuned"\n',
        "must have the fine-tuning of some precision",
        'finetuned = "W4A4"',
    ),
    "control of float": (
        RUN + 'precision = {finetuned = "float"}\n',
        "finetuned must name a precision",
        "W4A4",
    ),
    "control with bits": (
        RUN + 'precision = {finetuned = "W4A4", weight = 4}\n',
        "finetuned must name a precision",
        "stand alone",
    ),
    "control of a control": (
        RUN + 'precision = {finetuned = {finetuned = "W4A4"}}\n', "finetuned must name a precision", "W4A4"
    ),
    "control of what trains more": (
        RUN + 'precision = {finetuned = {preset = "paper"}}\n', "weights which keep their noise", "keep"
    ),
    "quantize": (RUN + "quantize = {epoch = 3}\n", "[run] quantize", "epochs"),
    "evaluate": (RUN + "evaluate = {draw = 3}\n", "[run] evaluate", "draws"),
    "no draws": (RUN + "evaluate = {draws = 0}\n", "draws must be from 1 to 100,000", "20"),
    "no rows": (RUN + "evaluate = {shift_rows = 0}\n", "shift_rows must be a whole number", "leave"),
    "share of rows": (RUN + "evaluate = {ood_rows = 0.5}\n", "ood_rows must be a whole number", "leave"),
    "type": (RUN + 'evaluate = {shifts = "yes"}\n', "shifts must be of type bool", "True"),
    "backend": (RUN + 'evaluate = {backend = "onedn"}\n', "backend", "onednn"),
    "seed": (RUN + "seed = -1\n", "[run] seed", ""),
    "axis over nothing": (RUN + "[axes]\nmetod = [1]\n", "[axes] metod", "method"),
    "axis that is no list": (RUN + "[axes]\nseed = 3\n", "[axes] seed", "[0, 1, 2]"),
    "empty axis": (RUN + "[axes]\nseed = []\n", "[axes] seed", "[0, 1, 2]"),
    "key that is not there": (RUN + "[axes]\nmethod.rat = [0.1]\n", "[axes] method.rat", "rate"),
    "value on an axis": (RUN + "[axes]\nmethod.rate = [0.1, 2.0]\n", "[axes] method.rate", "rate"),
    "twice": (
        RUN + '[axes]\nseed = [0]\n"precision + seed" = [{precision = "W4A4", seed = 0}]\n',
        "same thing twice",
        "one axis",
    ),
    "bits of float": (RUN + "[axes]\nprecision.weight = [4]\n", "[axes] precision.weight", "[run.precision]"),
    "half a join": (RUN + '[axes]\n"method + seed" = [{method = "bbb"}]\n', "table of method and seed", ""),
    "header": ("[study]\nquestion = 3\n" + RUN, "question must be text", ""),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_errors_name_the_file_the_key_and_the_nearest(case: str, tmp_path: Path) -> None:
    text, must, do = WRONG[case]
    path = tmp_path / "a study über alles.toml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        Study.read(path)
    assert path.name in caught.value.must
    assert must in str(caught.value)
    assert do in str(caught.value)


def test_a_file_that_is_missing_or_no_text(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match="readable"):
        Study.read(tmp_path / "none.toml")
    (tmp_path / "bytes.toml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(BadFile, match="UTF-8"):
        Study.read(tmp_path / "bytes.toml")


def test_all_studies_of_the_paper_and_ours_are_shipped() -> None:
    assert {path.stem for path in SHIPPED} >= {
        "digits", "diabetes", "uci-paper", "uci", "mnist-paper", "mnist", "cifar10-gpu-paper", "cifar10",
        "noise-bits", "draws",
    }  # fmt: skip


@pytest.mark.parametrize("path", SHIPPED, ids=lambda path: path.stem)
def test_shipped_studies_say_what_they_ask_cost_and_expect(path: Path) -> None:
    found = Study.read(path)
    assert found.name == path.stem
    assert all(found.header[key] for key in ("question", "cost", "expect"))
    count = sum(1 for _ in found.points())
    assert f"{count:,} runs" in found.header["cost"]


@pytest.mark.parametrize("name", ["uci-paper", "mnist-paper", "cifar10-gpu-paper"])
def test_the_papers_grid_is_whole(name: str) -> None:
    found = Study.read(SHIPPED[0].parent / f"{name}.toml")
    runs = [point.run for point in found.points()]
    bits = {
        (run["precision"]["weight"], run["precision"]["activation"])
        for run in runs
        if run["precision"] != "float"
    }
    assert bits == {(8, a) for a in range(3, 8)} | {(w, 7) for w in range(3, 9)}
    assert {run["seed"] for run in runs} == {0, 1, 2}
    assert {run["method"]["name"] for run in runs} == {"pointwise", "mcd", "bbb", "sghmc"}
    assert {run["method"]["preset"] for run in runs} == {"paper"}
    assert all(run["precision"] == "float" or run["precision"]["preset"] == "paper" for run in runs)


@pytest.mark.parametrize(
    ("quantize", "task", "told"),
    [
        ({"epochs": 0}, "cifar10", "calibrated"),
        ({"epochs": 0, "distill": 1.0}, "digits", "calibrated"),
        ({}, "cifar10", "trained"),
        ({"distill": 0.5}, "cifar10", "trained"),
        ({"distill": 0.0}, "cifar10", "labels"),
        ({"preset": "paper"}, "cifar10", "trained"),
        ({"preset": "paper", "distill": 0.0}, "cifar10", "trained"),
        ({"preset": "paper", "distill": 1.0}, "cifar10", "imitation"),
        ({"distill": 0.0}, "digits", "trained"),
        ({"distill": 1.0}, "digits", "imitation"),
        ({"distill": 0.0}, "uci/yacht", "labels"),
        ({}, "diabetes", "trained"),
        ({"distill": 1.0}, "rows.npz", "trained"),
    ],
)
def test_rows_say_what_their_training_was_taught_by(quantize: dict[str, Any], task: str, told: str) -> None:
    assert training_of(quantize, task) == told

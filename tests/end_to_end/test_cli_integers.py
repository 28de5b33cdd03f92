"""From a float posterior to a program on integers by the command line: commands do what the verbs do."""

import json
import os
import signal
import xml.etree.ElementTree as ET
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import qbayes as qb
from qbayes.integer.describe import COLUMNS
from qbayes.integer.structure.cost import cost
from qbayes.quant.finetune.fine_tuning import RECIPES
from qbayes.training.loop import Loop

Cli = Callable[..., Any]


def answers(program: qb.Program, backend: str, rows: int = 5, draws: int = 6) -> torch.Tensor:
    x, _ = next(iter(qb.load_task("digits").batches("test", rows)))
    return qb.load(program, backend).predict(x, draws=draws).mean


def test_quantize_gives_the_posterior_of_the_verb(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    command = ["quantize", digits_posterior, "--weight", 3, "--activation", 4, "--epochs", 2, "--seed", 5]
    more = ["--set", "noise=6", "--override", "logits:weight=8,weight_range=mse", "--learning-rate", "0.01"]
    told = cli(*command, *more, "--out", tmp_path / "q", "--json", "--quiet")
    precision = qb.Precision(
        weight=3, activation=4, noise=6, overrides={"logits": {"weight": 8, "weight_range": "mse"}}
    )
    budget = qb.FineTuning(epochs=2, learning_rate=0.01)
    expected = qb.quantize(
        qb.load_posterior(digits_posterior), qb.load_task("digits"), precision, budget, seed=5, progress=False
    )
    made = qb.load_posterior(tmp_path / "q")
    assert told.code == 0, told.err
    settled = precision.for_likelihood(made.signature.likelihood)
    assert told.json["precision"] == settled.to_json() == made.quantised
    assert told.json["budget"] == budget.resolve(precision).budget.to_json()
    assert made.members[0].keys() == expected.members[0].keys()
    for name, value in expected.members[0].items():
        assert torch.equal(made.members[0][name], value), name
    assert told.json["final_losses"] == [expected.provenance["quantised"]["losses"][0][-1]]
    assert sorted(path.name for path in (tmp_path / "q").iterdir()) == [
        "posterior.json",
        "weights.safetensors",
    ]


def test_quantize_takes_precision_and_budget_of_the_preset(
    cli: Cli, digits_posterior: Path, tmp_path: Path
) -> None:
    command = ["quantize", digits_posterior, "--preset", "paper", "--epochs", 1, "--set", "sigma=none"]
    told = cli(*command, "--out", tmp_path / "q", "--json", "--quiet")
    assert told.code == 0, told.err
    assert told.json["precision"] == qb.Precision.preset("paper").to_json()
    assert told.json["budget"]["learning_rate"] == RECIPES["paper"].options["learning_rate"]
    assert told.json["budget"]["epochs"] == 1


@pytest.mark.parametrize("kind", ["bytes", "bit-operations"])
def test_quantize_assigns_bits_by_layer(cli: Cli, digits_posterior: Path, tmp_path: Path, kind: str) -> None:
    command = ["quantize", digits_posterior, "--precision", "W4A4", "--mixed", kind, "--epochs", 0]
    told = cli(*command, "--seed", 3, "--out", tmp_path / "q", "--json", "--device", "cpu")
    assert told.code == 0, told.err
    posterior, task = qb.load_posterior(digits_posterior), qb.load_task("digits")
    budget = qb.BitBudget(**{kind.replace("-", "_"): qb.Precision(weight=4, activation=4)})
    wanted = qb.assign_bits(posterior, task, budget, seed=3, device="cpu")
    assert str(wanted) in told.err
    made = qb.load_posterior(tmp_path / "q")
    assert made.quantised == wanted.precision.for_likelihood(made.signature.likelihood).to_json()
    found = cost(qb.lower(made), variance=False)
    assert found.bytes == wanted.cost["bytes"]


def test_quantize_says_what_it_does_and_what_comes_next(
    cli: Cli, digits_posterior: Path, tmp_path: Path
) -> None:
    told = cli("quantize", digits_posterior, "--precision", "w4a5", "--epochs", 0, "--out", tmp_path / "q")
    assert told.code == 0
    assert "W4A5 on digits: 1 member, calibration only" in told.err
    assert "weights      4 bits, symmetric by channel, lsq" in told.err
    assert "calibrated after" in told.out
    assert f"next: qbayes lower {tmp_path / 'q'} --out {tmp_path / 'q'}.qbayes" in told.out


def test_every_member_is_quantised_and_the_recorded_options_of_the_task_hold(
    cli: Cli, tmp_path: Path
) -> None:
    small = ["--network", "mlp", "--network-set", "hidden=[8]", "--epochs", "2", "--quiet"]
    fit = ["fit", "diabetes", "--method", "pointwise", "--chains", 3, "--task-set", "split=4", *small]
    assert cli(*fit, "--out", tmp_path / "p").code == 0
    told = cli("quantize", tmp_path / "p", "--epochs", 1, "--out", tmp_path / "q", "--json", "--quiet")
    assert told.json["task"]["options"]["split"] == 4
    assert (told.json["members"], len(told.json["final_losses"])) == (3, 3)
    lowered = cli("lower", tmp_path / "q", "--out", tmp_path / "m.qbayes", "--json")
    assert lowered.json["members"] == len(qb.Program.open(tmp_path / "m.qbayes").members) == 3
    scored = cli("evaluate", tmp_path / "m.qbayes", "--draws", 3, "--json")
    assert scored.json["meta"]["data"] == qb.load_task("diabetes", split=4).fingerprint
    assert scored.err == ""


def test_lower_writes_the_program_of_the_verb_and_says_what_was_proven(
    cli: Cli, digits_quantised: Path, tmp_path: Path
) -> None:
    file = tmp_path / "m.qbayes"
    told = cli("lower", digits_quantised, "--out", file, "--json")
    program = qb.lower(qb.load_posterior(digits_quantised))
    opened = qb.Program.open(file)
    assert torch.equal(answers(opened, "reference"), answers(program, "reference"))
    assert told.json["bytes"] == file.stat().st_size
    assert told.json["float32_bytes"] == 4 * (64 * 16 + 16 * 10)
    assert told.json["ops"] == len(program.ops)
    assert 8 < told.json["proven"]["largest_sum_bits"] <= 32
    assert told.json["proven"]["largest_product_bits"] <= 63
    assert told.json["variance_ratios"] == {}
    shown = cli("lower", digits_quantised, "--out", file, "--overwrite").out
    assert f"{file.stat().st_size:,} bytes" in shown
    assert "no float between input and output codes" in shown
    assert f"next: qbayes evaluate {file}" in shown


def test_lower_reports_the_variance_that_gaussian_layers_keep(
    cli: Cli, diabetes_posterior: Path, tmp_path: Path
) -> None:
    quantize = ["quantize", diabetes_posterior, "--precision", "W3A4", "--epochs", 0, "--quiet"]
    assert cli(*quantize, "--out", tmp_path / "q").code == 0
    told = cli("lower", tmp_path / "q", "--out", tmp_path / "m.qbayes", "--json")
    program = qb.Program.open(tmp_path / "m.qbayes")
    expected = {op.name: op.variance_ratio for op in cost(program).ops if op.variance_ratio is not None}
    assert told.json["variance_ratios"] == pytest.approx(expected)
    assert len(expected) == 3
    assert all(0.8 <= ratio <= 1.25 for ratio in expected.values())
    inspected = cli("inspect", tmp_path / "m.qbayes", "--json").json
    assert [site["op"] for site in inspected["sites"] if site["kind"] == "gaussian"] == list(expected)
    assert [op["weight_bits"] for op in inspected["ops"] if op["weights"]] == [[3, 3]] * 3


def test_inspect_shows_file_and_folder_alike(
    cli: Cli, digits_quantised: Path, digits_program: Path, tmp_path: Path
) -> None:
    of_file = cli("inspect", digits_program, "--json").json
    of_folder = cli("inspect", digits_quantised, "--json").json
    assert of_file | {"model": ""} == of_folder | {"model": ""}
    names = [op["name"] for op in of_file["ops"]]
    assert names == ["flatten", "hidden.0", "logits.before", "logits"]
    assert of_file["sites"] == [
        {"site": 0, "kind": "mask", "op": "logits.before", "rate": 0.2, "channelwise": False}
    ]
    # 4-bit weights; the first layer reads 8-bit inputs once, the last 4-bit codes every draw.
    assert of_file["totals"]["bit_operations_once"] == 64 * 16 * 4 * 8
    assert of_file["totals"]["bit_operations_per_draw"] == 16 * 10 * 4 * 4
    assert of_file["totals"]["weights"] == 64 * 16 + 16 * 10
    shown = cli("inspect", digits_program, "--graph", tmp_path / "g.svg")
    assert shown.code == 0
    for words in (*COLUMNS, *names, "digits at W4A4: 1×8×8 at 8 bits → logits; 1 member", "mask"):
        assert words in shown.out
    drawn = ET.fromstring((tmp_path / "g.svg").read_bytes())
    words = {element.text for element in drawn.iter("{http://www.w3.org/2000/svg}text")}
    assert set(names) <= words


@pytest.mark.parametrize("backend", ["auto", "reference", "onednn"])
def test_evaluate_gives_the_scores_of_the_program(cli: Cli, digits_program: Path, backend: str) -> None:
    told = cli("evaluate", digits_program, "--backend", backend, "--draws", 4, "--no-shifts", "--json")
    deployed = qb.load(digits_program, backend)
    expected = qb.evaluate(deployed, qb.load_task("digits"), draws=4, shifts=False)
    assert told.code == 0, told.err
    assert told.json["clean"] == expected.clean
    assert told.json["confusion"] == expected.confusion
    assert told.json["meta"]["backend"] == deployed.backend.name
    assert told.json["meta"]["precision"] == "W4A4"


def test_a_quantised_folder_answers_as_saved_and_on_a_backend_as_its_program(
    cli: Cli, digits_quantised: Path, digits_program: Path
) -> None:
    rows = ["task:digits:4-8", "--draws", 3, "--json"]
    saved = cli("predict", digits_quantised, *rows).json["answers"]
    lowered = cli("predict", digits_quantised, *rows, "--backend", "reference").json["answers"]
    program = cli("predict", digits_program, *rows, "--backend", "reference", "--frozen-draws", 3).json[
        "answers"
    ]
    assert lowered == program
    assert [one["row"] for one in saved] == [4, 5, 6, 7, 8]
    apart = [abs(a["confidence"] - b["confidence"]) for a, b in zip(saved, program, strict=True)]
    assert max(apart) < 0.01
    shown = cli("evaluate", digits_quantised, "--draws", 2, "--no-shifts", "--no-confusion").out
    assert "mcd at W4A4, fake-quantised, on digits" in shown


def test_predict_on_a_program_reads_and_writes_files(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    x, _ = next(iter(qb.load_task("digits").batches("test", 3)))
    np.save(tmp_path / "x.npy", x.numpy().astype(np.uint8))
    out = tmp_path / "a.json"
    told = cli("predict", digits_program, tmp_path / "x.npy", "--draws", 6, "--out", out)
    assert told.code == 0, told.err
    found = json.loads(out.read_text())["answers"]
    expected = qb.load(digits_program).predict(x, draws=6).mean
    got = [[value for key, value in row.items() if key.startswith("probability_")] for row in found]
    assert torch.allclose(torch.tensor(got), expected, atol=1e-6)


def test_own_network_from_fit_to_program(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One's own network is named until it is lowered; the program needs it no more."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    Path("own_nets_integers.py").write_text(
        "from torch import nn\n"
        "def small(input_shape, outputs):\n"
        "    first = nn.Sequential(nn.Flatten(), nn.Linear(64, 12), nn.Tanh())\n"
        "    return nn.Sequential(first, nn.Linear(12, outputs[0]))\n"
    )
    own = ["--network", "own_nets_integers:small"]
    fitted = cli("fit", "digits", "--method", "bbb", *own, "--epochs", 2, "--out", "p", "--quiet")
    refused = cli("quantize", "p", "--epochs", 0, "--out", "q", "--quiet")
    made = cli("quantize", "p", *own, "--epochs", 1, "--out", "q", "--quiet")
    lowered = cli("lower", "q", *own, "--out", "m.qbayes")
    assert (fitted.code, refused.code, made.code, lowered.code) == (0, 2, 0, 0), made.err
    assert "own_nets_integers:small" in refused.err
    Path("own_nets_integers.py").unlink()
    told = cli("inspect", "m.qbayes", "--json").json
    assert [op["kind"] for op in told["ops"]] == ["reshape", "linear", "lookup", "linear"]
    assert cli("evaluate", "m.qbayes", "--draws", 2, "--no-shifts").code == 0


def test_interrupted_and_resumed_gives_the_same_bits(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A real SIGINT inside the second epoch of the second member leaves both members' checkpoints."""
    small = ["--network", "mlp", "--network-set", "hidden=[8]", "--epochs", "4", "--quiet"]
    members = ["--set", "members=2", "--set", "every=1"]
    assert cli("fit", "digits", "--method", "sghmc", *small, *members, "--out", tmp_path / "p").code == 0
    command = ["quantize", tmp_path / "p", "--precision", "W4A4", "--epochs", 3, "--batch-size", 128]
    stopped, whole = tmp_path / "stopped", tmp_path / "whole"
    take_step, taken = Loop._step, list[int]()  # pyright: ignore[reportPrivateUsage]

    def step_and_interrupt(self: Loop, x: torch.Tensor, y: torch.Tensor) -> None:
        take_step(self, x, y)
        taken.append(1)
        if len(taken) == 46:
            os.kill(os.getpid(), signal.SIGINT)

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "_step", step_and_interrupt)
        first = cli(*command, "--out", stopped)
    assert first.code == 130, first.err
    assert "stopped in epoch 2 of 3" in first.err
    assert "go on with: qbayes " in first.err
    files = sorted(str(path.relative_to(stopped)) for path in stopped.rglob("*.checkpoint"))
    assert files == ["checkpoint/member-0000.checkpoint", "checkpoint/member-0001.checkpoint"]
    refused = cli(*command, "--out", stopped)
    other = cli(*command, "--out", stopped, "--resume", "--seed", 1)
    assert (refused.code, other.code) == (2, 2)
    assert "--resume" in refused.err
    assert "belongs to another run" in other.err
    assert cli(*command, "--out", stopped, "--resume").code == 0
    assert cli(*command, "--out", whole, "--quiet").code == 0
    kept = [(folder / "weights.safetensors").read_bytes() for folder in (stopped, whole)]
    assert kept[0] == kept[1]
    assert sorted(path.name for path in stopped.iterdir()) == ["posterior.json", "weights.safetensors"]

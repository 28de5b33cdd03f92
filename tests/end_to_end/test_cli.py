"""The commands do what they say, and ``--json`` gives one document and nothing else."""

import csv
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import qbayes as qb
from qbayes.metrics import METRICS

Cli = Callable[..., Any]
# A small network and a few epochs: enough for a posterior, not for a good one.
SMALL = ["--network", "mlp", "--network-set", "hidden=[16]", "--epochs", "2", "--quiet"]


def test_fit_says_what_it_made_stochastic_and_what_comes_next(cli: Cli, tmp_path: Path) -> None:
    told = cli("fit", "digits", "--method", "mcd", "--out", tmp_path / "p", *SMALL[:-1])
    assert told.code == 0
    assert "mask      before  logits: rate 0.2" in told.err
    assert "left alone        hidden.0: no mask before it" in told.err
    assert f"next: qbayes evaluate {tmp_path / 'p'}" in told.out
    assert sorted(path.name for path in (tmp_path / "p").iterdir()) == [
        "posterior.json",
        "weights.safetensors",
    ]


def test_fit_takes_the_preset_and_what_the_user_says_over_it(cli: Cli, tmp_path: Path) -> None:
    command = [
        "fit",
        "diabetes",
        "--method",
        "mcd",
        "--set",
        "rate=0.3",
        "--task-set",
        "split=4",
        "--seed",
        "7",
    ]
    told = cli(*command, "--out", tmp_path / "p", "--json", *SMALL)
    preset = qb.method("mcd").preset("default", "diabetes", "regression")
    assert told.code == 0
    assert told.json["method"]["rate"] == 0.3
    assert told.json["budget"]["epochs"] == 2
    assert told.json["budget"]["learning_rate"] == preset.budget["learning_rate"]
    assert told.json["task"]["options"]["split"] == 4
    assert told.json["network"]["options"]["hidden"] == [16]
    assert told.json["seed"] == 7
    assert told.json["final_losses"] == [qb.load_posterior(tmp_path / "p").provenance["losses"][0][-1]]


def test_chains_become_members_and_a_posterior_a_start(cli: Cli, tmp_path: Path) -> None:
    first = cli("fit", "diabetes", "--method", "pointwise", "--chains", 3, "--out", tmp_path / "a", *SMALL)
    second = cli(
        "fit",
        "diabetes",
        "--method",
        "bbb",
        "--start",
        tmp_path / "a",
        "--out",
        tmp_path / "b",
        "--json",
        *SMALL,
    )
    assert (first.code, second.code) == (0, 0)
    assert len(qb.load_posterior(tmp_path / "a").members) == 3
    assert [site["kind"] for site in second.json["stochastic"]] == ["gaussian"] * 3


def test_evaluate_gives_the_scores_of_the_verb(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    told = cli(
        "evaluate", digits_posterior, "--draws", 5, "--no-shifts", "--json", "--out", tmp_path / "s.json"
    )
    expected = qb.evaluate(qb.load_posterior(digits_posterior), qb.load_task("digits"), draws=5, shifts=False)
    assert told.code == 0
    assert told.json["clean"] == expected.clean
    assert told.json["confusion"] == expected.confusion
    assert told.json["shifted"] == {}
    assert json.loads((tmp_path / "s.json").read_text()) == told.json


def test_evaluate_prints_clean_shifted_and_confusion_scores(cli: Cli, digits_posterior: Path) -> None:
    told = cli("evaluate", digits_posterior, "--draws", 2)
    assert told.code == 0
    for words in ("449 test rows, 2 draws", "under rotation", "under brightness", "photographs", "AUROC"):
        assert words in told.out
    assert METRICS["ece_per_batch"].label in told.out


def test_evaluate_shifts_and_confuses_chosen_rows(cli: Cli, digits_posterior: Path) -> None:
    chosen = ("--shift-rows", 40, "--ood-rows", 30)
    told = cli("evaluate", digits_posterior, "--draws", 2, *chosen)
    assert told.code == 0
    assert "shifted were 40 of the rows" in " ".join(told.out.split())
    as_json = cli("evaluate", digits_posterior, "--draws", 2, *chosen, "--json").json
    expected = qb.evaluate(
        qb.load_posterior(digits_posterior), qb.load_task("digits"), draws=2, shift_rows=40, ood_rows=30
    )
    assert (as_json["unshifted"], as_json["confusion"]) == (expected.unshifted, expected.confusion)
    assert as_json["shifted"]["rotation"]["5"] == expected.shifted["rotation"][5]
    refused = cli("evaluate", digits_posterior, "--shift-rows", 100_000)
    assert refused.code == 2
    assert "shift_rows must be at most the number of rows that there are" in " ".join(refused.err.split())


def test_evaluate_uses_the_recorded_options_of_the_task(cli: Cli, diabetes_posterior: Path) -> None:
    recorded = cli("evaluate", diabetes_posterior, "--draws", 2, "--json")
    other = cli("evaluate", diabetes_posterior, "--draws", 2, "--json", "--task-set", "split=3")
    task = qb.load_task("diabetes", split=2)
    assert recorded.json["meta"]["data"] == task.fingerprint
    assert recorded.err == ""
    assert other.json["clean"] != recorded.json["clean"]
    assert "differ from those that this posterior was fitted on" in other.err


def test_predict_answers_for_rows_of_a_task_as_evaluate_does(cli: Cli, digits_posterior: Path) -> None:
    told = cli("predict", digits_posterior, "task:digits:5-7", "--draws", 4, "--seed", 3, "--json")
    x, y = next(iter(qb.load_task("digits").batches("test", 8)))
    prediction = qb.load_posterior(digits_posterior).predict(x, draws=4, seed=3)
    answers = told.json["answers"]
    assert [answer["row"] for answer in answers] == [5, 6, 7]
    assert [answer["target"] for answer in answers] == [str(k) for k in y[5:8].tolist()]
    assert [answer["entropy"] for answer in answers] == pytest.approx(
        prediction.entropy[5:8].tolist(), abs=1e-5
    )
    sums = [sum(value for key, value in a.items() if key.startswith("probability_")) for a in answers]
    assert sums == pytest.approx([1, 1, 1], abs=1e-5)


@pytest.mark.parametrize("header", [True, False])
def test_predict_reads_csv_and_writes_quantiles(
    cli: Cli, diabetes_posterior: Path, tmp_path: Path, header: bool
) -> None:
    x, _ = next(iter(qb.load_task("diabetes").batches("test", 4)))
    names = ",".join(f"column {k}" for k in range(x.shape[1])) + "\n" if header else ""
    lines = "\n".join(",".join(str(v) for v in row) for row in x.tolist())
    (tmp_path / "x.csv").write_text(names + lines + "\n")
    told = cli(
        "predict",
        diabetes_posterior,
        tmp_path / "x.csv",
        "--quantiles",
        "0.1,0.9",
        "--out",
        tmp_path / "a.csv",
    )
    with (tmp_path / "a.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    expected = qb.load_posterior(diabetes_posterior).predict(x)
    assert told.code == 0
    assert list(rows[0]) == ["row", "mean", "std", "quantile_0.1", "quantile_0.9"]
    assert [float(row["mean"]) for row in rows] == pytest.approx(expected.mean[:, 0].tolist(), rel=1e-5)
    assert all(float(row["quantile_0.1"]) < float(row["mean"]) < float(row["quantile_0.9"]) for row in rows)


def test_predict_reads_npy_and_npz_and_a_flat_csv_of_images_alike(
    cli: Cli, digits_posterior: Path, tmp_path: Path
) -> None:
    x = next(iter(qb.load_task("digits").batches("test", 3)))[0].numpy()
    np.save(tmp_path / "x.npy", x)
    np.savez(tmp_path / "x.npz", x=x.astype(np.float64))
    np.savetxt(tmp_path / "x.csv", x.reshape(3, -1), delimiter=",")
    answers = [
        cli("predict", digits_posterior, tmp_path / f"x.{end}", "--json") for end in ("npy", "npz", "csv")
    ]
    assert answers[0].code == 0
    assert answers[0].json["answers"] == answers[1].json["answers"] == answers[2].json["answers"]


def test_predict_writes_npz_and_json_of_the_same_answers(
    cli: Cli, digits_posterior: Path, tmp_path: Path
) -> None:
    for name in ("a.npz", "a.json"):
        assert cli("predict", digits_posterior, "task:digits:3", "--out", tmp_path / name).code == 0
    records = json.loads((tmp_path / "a.json").read_text())["answers"]
    with np.load(tmp_path / "a.npz", allow_pickle=False) as arrays:
        assert arrays["confidence"].tolist() == [record["confidence"] for record in records]
        assert arrays["predicted"].tolist() == [record["predicted"] for record in records]


def test_own_data_and_own_network(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file of arrays and ``package.module:factory``, which is imported only when the user names it."""
    monkeypatch.chdir(tmp_path)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(40, 3)).astype(np.float32)
    y = (x[:, 0] > 0).astype(np.int64)
    np.savez("data.npz", x_train=x, y_train=y, x_test=x[:10], y_test=y[:10])
    Path("own_nets_cli.py").write_text(
        "from torch import nn\n"
        "def small(input_shape, outputs, width=4):\n"
        "    first, last = nn.Linear(input_shape[0], width), nn.Linear(width, outputs[0])\n"
        "    return nn.Sequential(first, nn.ReLU(), last)\n"
    )
    own = ["--network", "own_nets_cli:small"]
    fitted = cli(
        "fit", "data.npz", "--method", "mcd", *own, "--network-set", "width=6", "--epochs", 2, "--out", "p"
    )
    refused = cli("evaluate", "p", "--json")
    scored = cli("evaluate", "p", *own, "--json")
    predicted = cli("predict", "p", "task:data:4", *own, "--json")
    assert (fitted.code, refused.code, scored.code, predicted.code) == (0, 2, 0, 0)
    assert "own_nets_cli:small" in refused.err
    assert refused.out == ""
    assert scored.json["meta"]["rows"] == 10
    assert [answer["target"] for answer in predicted.json["answers"]] == [str(label) for label in y[:4]]


def test_list_names_every_member_with_its_options(cli: Cli) -> None:
    everything = cli("list", "--json").json
    registries = {"methods", "networks", "tasks", "metrics", "quantizers", "backends", "targets", "engines"}
    assert set(everything) == registries | {"options"}
    assert "onnx" in everything["targets"]
    assert set(everything["methods"]) == {"pointwise", "mcd", "bbb", "sghmc"}
    assert everything["methods"]["mcd"]["options"]["rate"] == qb.method("mcd").to_json()["rate"]
    assert everything["networks"]["lenet"]["options"] == {"style": "paper", "noise": "row"}
    assert everything["tasks"]["digits"]["options"]["split"] == 0
    assert set(everything["quantizers"]) == {"minmax", "ema", "percentile", "mse", "lsq"}
    assert set(everything["backends"]) == {"reference", "onednn", "onnxruntime", "openvino", "triton"}
    assert everything["backends"]["reference"]["tolerance"] == {"codes": 0, "share_equal": 1.0}
    shown = cli("list", "methods").out
    assert "Monte Carlo dropout" in shown
    assert "resnet18" not in shown


def test_data_list_and_verify_say_where_and_whether(cli: Cli, tmp_path: Path) -> None:
    listed = cli("data", "list", "--data-dir", tmp_path, "--json").json
    mnist = next(row for row in listed["data_sets"] if row["name"] == "mnist")
    assert listed["data_folder"] == str(tmp_path)
    assert (mnist["files"], mnist["files_there"]) == (4, 0)
    assert mnist["terms"] == "CC BY-SA 3.0"
    missing = cli("data", "verify", "mnist", "--data-dir", tmp_path, "--json")
    assert missing.code == 1
    assert [file["status"] for file in missing.json["files"]] == ["missing"] * 4
    # nothing fetched yet is no fault of the folder as a whole; a damaged file is.
    assert cli("data", "verify", "--data-dir", tmp_path).code == 0
    (tmp_path / "mnist").mkdir()
    (tmp_path / "mnist" / "t10k-labels-idx1-ubyte.gz").write_bytes(b"not gzip")
    damaged = cli("data", "verify", "--data-dir", tmp_path)
    assert damaged.code == 1
    assert "damaged  mnist: t10k-labels-idx1-ubyte.gz" in damaged.out


def test_data_fetch_of_a_bundled_set_has_nothing_to_do(cli: Cli, tmp_path: Path) -> None:
    assert cli("data", "fetch", "digits", "--data-dir", tmp_path, "--json").json["files"] == []


COMMANDS = ["fit", "quantize", "lower", "inspect", "evaluate", "predict", "bench", "data", "list", "demo"]


@pytest.mark.parametrize("command", ["", *COMMANDS, "data fetch"])
def test_every_help_shows_an_example(cli: Cli, command: str) -> None:
    told = cli(*command.split(), "--help")
    assert told.code == 0
    assert f"  qbayes {command}".rstrip() in told.out


def test_module_runs_as_the_command() -> None:
    source = Path(qb.__file__).parents[1]
    told = subprocess.run(
        [sys.executable, "-m", "qbayes", "list", "metrics", "--json"],
        env={**os.environ, "PYTHONPATH": str(source)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(told.stdout)["metrics"]["ece"]["better"] == "lower"

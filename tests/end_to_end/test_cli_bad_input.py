"""Bad input: three parts on standard error, exit code 2, nothing on standard output, nothing lost."""

import os
import resource
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import needs
import qbayes as qb
from qbayes.cli.console import report_bug
from qbayes.errors import RunFailed
from refusal import refused

Cli = Callable[..., Any]
# A small network and a few epochs: enough for a posterior, not for a good one.
SMALL = ["--network", "mlp", "--network-set", "hidden=[16]", "--epochs", "2", "--quiet"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--method", "mcdd"], ["'mcdd'", "did you mean 'mcd'?"]),
        (["--network", "lenett"], ["'lenett'", "did you mean 'lenet'?"]),
        (["--network", "no_such_module:factory"], ["no_such_module"]),
        (["--preset", "papers"], ["did you mean 'paper'?"]),
        (["--preset", "paper"], ["'digits'"]),
        (["--set", "rat=0.2"], ["did you mean 'rate'?"]),
        (["--set", "rate"], ["key=value"]),
        (["--set", "rate=1.5"], ["1.5"]),
        (["--set", "rate=high"], ["mcd"]),
        (["--set", "after=[1]"], ["after", "list of names"]),
        (["--set", 'rates={"2": "x"}'], ["rates", "names to rates"]),
        (["--network-set", "stile=relu"], ["'stile'", "known"]),
        (["--task-set", "splt=1"], ["did you mean 'split'?"]),
        (["--epochs", "0"], ["epochs"]),
        (["--epochs", "many"], ["--epochs"]),
        (["--schedule", "cosin"], ["did you mean 'cosine'?"]),
        (["--device", "gpu"], ["gpu"]),
        (["--seed", "-1"], ["seed"]),
        (["--chains", "0"], ["chains"]),
        (["--start", "nowhere"], ["nowhere"]),
        (["--epohs", "3"], ["--epohs", "did you mean '--epochs'?"]),
    ],
)
def test_fit_refuses_before_it_starts(cli: Cli, tmp_path: Path, changed: list[str], words: list[str]) -> None:
    refused(cli("fit", "digits", "--method", "mcd", "--quiet", "--out", tmp_path / "p", *changed), *words)
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("fitt", "did you mean 'fit'?"),
        ("fit digts --method mcd --out p", "did you mean 'digits'?"),
        ("fit digits --out p", "--method"),
        ("fit", "qbayes fit --help"),
        ("data fetsh mnist", "did you mean 'fetch'?"),
        ("data fetch mnst", "did you mean 'mnist'?"),
        ("list method", "did you mean 'methods'?"),
        ("fit mnist --method mcd --out p --data-dir .", "train-images-idx3-ubyte.gz"),
        ("evaluate nowhere", "posterior.json"),
        ("fit none.npz --method mcd --out p", "none.npz"),
    ],
)
def test_unknown_names_suggest_the_nearest(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str, words: str
) -> None:
    monkeypatch.chdir(tmp_path)
    refused(cli(*command.split()), words)
    assert list(tmp_path.iterdir()) == []


def arrays(**changed: np.ndarray) -> dict[str, np.ndarray]:
    x = np.random.default_rng(0).normal(size=(20, 3)).astype(np.float32)
    y = np.arange(20) % 2
    return {"x_train": x, "y_train": y, "x_test": x[:4], "y_test": y[:4], **changed}


def with_nan(x: np.ndarray) -> np.ndarray:
    x = x.copy()
    x[3, 1] = np.nan
    return x


@pytest.mark.parametrize(
    ("changed", "word"),
    [
        ({"x_train": with_nan(arrays()["x_train"])}, "row 3"),
        ({"y_train": with_nan(np.ones((20, 2)))}, "nan"),
        ({"y_test": np.array([0, 1, 0, 7])}, "7"),
        ({"y_train": np.zeros(20, dtype=int), "y_test": np.zeros(4, dtype=int)}, "two classes"),
        ({"y_train": np.arange(20) % 2 - 1}, "-1"),
        ({"y_train": np.arange(19) % 2}, "19"),
        ({"x_test": np.zeros((4, 5), np.float32)}, "(5,)"),
        ({"x_train": np.zeros((0, 3), np.float32), "y_train": np.zeros(0, int)}, "empty"),
        ({"x_tset": np.zeros((4, 3), np.float32)}, "did you mean 'x_test'?"),
    ],
)
def test_bad_arrays(cli: Cli, tmp_path: Path, changed: dict[str, np.ndarray], word: str) -> None:
    np.savez(tmp_path / "data.npz", **arrays(**changed))
    refused(cli("fit", tmp_path / "data.npz", "--method", "mcd", "--out", tmp_path / "p", *SMALL), word)
    assert not (tmp_path / "p").exists()


def test_network_that_changes_its_batch(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    Path("batch_eater.py").write_text(
        "from torch import nn\n"
        "class Eater(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        "        self.layer = nn.Linear(64, 10)\n"
        "    def forward(self, x):\n"
        "        return self.layer(x.flatten(1)).mean(0, keepdim=True)\n"
    )
    command = [
        "fit",
        "digits",
        "--method",
        "pointwise",
        "--network",
        "batch_eater:Eater",
        "--out",
        "p",
        "--quiet",
    ]
    refused(cli(*command), "keep its batch", "x.flatten(1)")
    assert not Path("p").exists()


def flip(path: Path, place: int) -> None:
    content = bytearray(path.read_bytes())
    content[place] ^= 1
    path.write_bytes(content)


@pytest.mark.parametrize(
    "damage",
    [
        lambda folder: flip(folder / "weights.safetensors", -3),
        lambda folder: flip(folder / "posterior.json", 40),
        lambda folder: (folder / "weights.safetensors").unlink(),
        lambda folder: (folder / "posterior.json").write_bytes(
            (folder / "posterior.json").read_bytes()[:200]
        ),
        lambda folder: (folder / "posterior.json").write_text("[]"),
    ],
    ids=["weights", "header", "no weights", "cut header", "other JSON"],
)
def test_damaged_posterior(
    cli: Cli, digits_posterior: Path, tmp_path: Path, damage: Callable[[Path], object]
) -> None:
    shutil.copytree(digits_posterior, tmp_path / "p")
    damage(tmp_path / "p")
    refused(cli("evaluate", tmp_path / "p", "--json"), str(tmp_path / "p"))
    refused(cli("predict", tmp_path / "p", "task:digits:1", "--network", "mlp"), "")


def test_output_folder_that_holds_something_is_left_alone(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    command = ["fit", "digits", "--method", "mcd", "--out", tmp_path, *SMALL]
    refused(cli(*command), "thesis.txt")
    refused(cli(*command, "--overwrite"), "thesis.txt")
    refused(cli(*command, "--resume"), "thesis.txt")
    assert [path.name for path in tmp_path.iterdir()] == ["thesis.txt"]


def test_a_posterior_is_replaced_only_on_request(cli: Cli, tmp_path: Path) -> None:
    command = ["fit", "diabetes", "--method", "mcd", "--out", tmp_path / "p", *SMALL]
    assert cli(*command).code == 0
    before = (tmp_path / "p" / "weights.safetensors").read_bytes()
    refused(cli(*command, "--seed", 1), "posterior.json")
    refused(cli(*command, "--seed", 1, "--resume"), "posterior.json")
    assert (tmp_path / "p" / "weights.safetensors").read_bytes() == before
    assert cli(*command, "--seed", 1, "--overwrite").code == 0
    assert (tmp_path / "p" / "weights.safetensors").read_bytes() != before


@pytest.mark.parametrize("place", ["file/p", "file", "/proc/p"])
def test_output_folder_that_cannot_be_written(cli: Cli, tmp_path: Path, place: str) -> None:
    # it refuses even the superuser.
    needs.require(Path("/proc").is_dir(), needs.LINUX)
    (tmp_path / "file").write_text("a file")
    (tmp_path / "file").chmod(0o755)
    refused(cli("fit", "digits", "--method", "mcd", "--out", tmp_path / place, *SMALL), "folder")
    assert (tmp_path / "file").read_text() == "a file"


def test_full_output_folder_loses_nothing(tmp_path: Path) -> None:
    """A limit on the size of files stands in for a full disk: nothing is left half written."""
    told = subprocess.run(
        [sys.executable, "-m", "qbayes", "fit", "digits", "--method", "mcd", "--out", "p", *SMALL],
        env={**os.environ, "PYTHONPATH": str(Path(qb.__file__).parents[1])},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000)),
    )
    assert told.returncode == 2, told.stderr
    assert "File too large" in told.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []


def test_predict_refuses_rows_that_do_not_fit(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "wrong.npy", np.zeros((2, 64), np.float32))
    np.save(tmp_path / "nan.npy", np.full((2, 1, 8, 8), np.nan))
    np.save(tmp_path / "text.npy", np.array(["a", "b"]))
    np.savez(tmp_path / "other.npz", y=np.zeros(3))
    (tmp_path / "ragged.csv").write_text("1,2,3\n4,5\n")
    (tmp_path / "junk.npy").write_bytes(b"junk")
    for name, word in {
        "wrong.npy": "(2, 64)",
        "nan.npy": "NaN",
        "text.npy": "real numbers",
        "other.npz": "'x'",
        "ragged.csv": "line 2",
        "junk.npy": "junk.npy",
        "absent.npy": "absent.npy",
        "x.txt": ".csv",
    }.items():
        refused(cli("predict", digits_posterior, tmp_path / name), word)
    refused(cli("predict", digits_posterior, "task:digits:440-449"), "449 test rows")
    refused(cli("predict", digits_posterior, "task:digits:9-3"), "9-3")
    refused(cli("predict", digits_posterior, "task:digits:3", "--quantiles", "0.5"), "quantiles")
    refused(cli("predict", digits_posterior, "task:digits:3", "--draws", 0), "draws")


def test_results_are_not_overwritten(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    kept = tmp_path / "scores.json"
    kept.write_text("mine")
    refused(cli("evaluate", digits_posterior, "--out", kept), "--overwrite")
    refused(cli("predict", digits_posterior, "task:digits:3", "--out", kept), "--overwrite")
    refused(cli("predict", digits_posterior, "task:digits:3", "--out", tmp_path / "a.txt"), ".csv")
    refused(cli("predict", digits_posterior, "task:digits:3", "--out", kept / "a.csv"), "writable")
    assert kept.read_text() == "mine"
    assert cli("predict", digits_posterior, "task:digits:3", "--out", kept, "--overwrite").code == 0
    assert kept.read_text().startswith("{")


def test_evaluate_refuses_another_kind_of_task(cli: Cli, digits_posterior: Path) -> None:
    refused(cli("evaluate", digits_posterior, "--task", "diabetes"), "diabetes")
    refused(cli("evaluate", digits_posterior, "--split", "tst"), "did you mean 'test'?")


def test_a_failed_run_exits_with_1_and_leaves_no_folder(cli: Cli, tmp_path: Path) -> None:
    command = [
        "fit",
        "digits",
        "--method",
        "pointwise",
        "--learning-rate",
        "1e30",
        "--out",
        tmp_path / "p",
        *SMALL,
    ]
    refused(cli(*command), "not finite", code=RunFailed.exit_code)
    assert not (tmp_path / "p").exists()


def test_debug_shows_the_traceback(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QBAYES_DEBUG", "1")
    assert "Traceback" in cli("evaluate", "nowhere").err


def test_unforeseen_errors_are_short_unless_debugged(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    error = KeyError("weights")
    report_bug(KeyError, error, None)
    short = capsys.readouterr().err
    assert "unexpected KeyError: 'weights'" in short
    assert "QBAYES_DEBUG=1" in short
    report_bug(torch.OutOfMemoryError, torch.OutOfMemoryError("tried 2 GiB"), None)
    assert "--batch-size" in capsys.readouterr().err
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60, dtype=torch.uint8)  # more than any address space has
    report_bug(RuntimeError, caught.value, None)
    assert "out of memory" in (told := capsys.readouterr().err)
    assert "--batch-size" in told
    monkeypatch.setenv("QBAYES_DEBUG", "1")
    report_bug(KeyError, error, None)
    assert "KeyError" in capsys.readouterr().err

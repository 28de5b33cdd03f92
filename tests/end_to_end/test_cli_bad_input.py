"""Bad input: three parts on standard error, exit code 2, nothing on standard output, nothing lost."""

import json
import os
import pickle
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
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import qbayes as qb
from qbayes.cli.console import report_bug
from qbayes.errors import RunFailed
from qbayes.integer.backends.base import BACKENDS
from qbayes.integer.program_file import content_hash
from qbayes.training.loop import Loop

Cli = Callable[..., Any]
# A small network and a few epochs: enough for a posterior, not for a good one.
SMALL = ["--network", "mlp", "--network-set", "hidden=[16]", "--epochs", "2", "--quiet"]


def refused(result: Any, *words: str, code: int = 2) -> None:
    assert result.code == code, result.err
    assert result.out == ""
    assert result.err.startswith("error: ")
    assert "\n  got: " in result.err
    assert "\n  do:  " in result.err
    assert "Traceback" not in result.err
    for word in words:
        assert word in result.err


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
    if not Path("/proc").is_dir():
        pytest.skip("no folder here that refuses even the superuser")
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


QUANTIZE = ["--epochs", "0", "--quiet"]


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        (["--precision", "W4"], ["'W4'", "W4A4"]),
        (["--precision", "W9A4"], ["weight", "2 to 8", "9"]),
        (["--weight", "1"], ["weight", "2 to 8"]),
        (["--activation", "9"], ["activation", "2 to 8"]),
        (["--set", "noise=12"], ["noise", "2 to 8"]),
        (["--set", "weight=many"], ["weight", "'many'"]),
        (["--precision", "W4A4", "--weight", "4"], ["--precision and --weight"]),
        (["--set", "weight=4", "--weight", "4"], ["--weight and --set"]),
        (["--set", "weigth=4"], ["did you mean 'weight'?"]),
        (["--set", "weight"], ["key=value", "weight_range=mse"]),
        (["--set", "weight_range=lsqq"], ["did you mean 'lsq'?"]),
        (["--set", "overrides=3"], ["overrides", "layer names"]),
        (["--override", "logit:weight=8"], ["'logit' matches none", "did you mean 'logits'?"]),
        (["--override", "logits"], ["'logits'", "logits:weight=8"]),
        (["--override", "logits:weight"], ["key=value", "'weight'"]),
        (["--override", "logits:weigt=8"], ["did you mean 'weight'?"]),
        (["--override", "logits:weight=9"], ["override 'logits'", "2 to 8"]),
        (["--preset", "papers"], ["did you mean 'paper'?"]),
        (["--keep", "bset"], ["did you mean 'best'?"]),
        (["--keep", "best", "--task-set", "validation=0"], ["validation"]),
        (["--freeze", "2"], ["freeze"]),
        (["--epochs", "-1"], ["epochs"]),
        (["--learning-rate", "0"], ["learning_rate"]),
        (["--seed", "-1"], ["seed"]),
        (["--device", "gpu"], ["gpu"]),
        (["--task", "diabetes"], ["(10,)", "'digits'"]),
        (["--task", "digts"], ["did you mean 'digits'?"]),
        (["--network", "resnet18"], ["parameters that were saved"]),
    ],
)
def test_quantize_refuses_before_it_starts(
    cli: Cli, digits_posterior: Path, tmp_path: Path, changed: list[str], words: list[str]
) -> None:
    refused(cli("quantize", digits_posterior, *QUANTIZE, "--out", tmp_path / "q", *changed), *words)
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize(
    ("command", "words"),
    [
        (["quantize", "QUANTISED", "--out", "o"], ["quantised already", "W4A4", "qbayes fit"]),
        (["quantize", "PROGRAM", "--out", "o"], ["float posterior", "qbayes fit"]),
        (["quantize", "FLOAT", "--out", "FLOAT", "--overwrite"], ["must stay"]),
        (["quantize", "FLOAT", "--out", "QUANTISED"], ["--overwrite"]),
        (["quantize", "FLOAT", "--out", "PROGRAM"], ["folder"]),
        (["quantize", "nowhere", "--out", "o"], ["nowhere"]),
        (["fit", "digits", "--method", "mcd", "--start", "QUANTISED", "--out", "o"], ["quantised already"]),
        (["lower", "FLOAT", "--out", "o.qbayes"], ["float", "qbayes quantize"]),
        (["lower", "PROGRAM", "--out", "o.qbayes"], ["qbayes quantize"]),
        (["lower", "QUANTISED", "--out", "PROGRAM"], ["exists", "--overwrite"]),
        (["lower", "QUANTISED", "--out", "o.bin"], [".qbayes"]),
        (["lower", "QUANTISED", "--out", "PROGRAM/o.qbayes"], ["writable"]),
        (["inspect", "FLOAT"], ["float", "qbayes quantize"]),
        (["inspect", "nowhere.qbayes"], ["nowhere.qbayes"]),
        (["inspect", "PROGRAM", "--graph", "o.png"], [".svg"]),
        (["inspect", "PROGRAM", "--graph", "PROGRAM/o.svg"], ["writable"]),
        (["inspect", "PROGRAM", "--network", "mlp"], ["without a network"]),
        (["evaluate", "FLOAT", "--backend", "reference"], ["float", "qbayes quantize"]),
        (["evaluate", "PROGRAM", "--backend", "onedn"], ["did you mean 'onednn'?"]),
        (["evaluate", "PROGRAM", "--task", "diabetes"], ["diabetes"]),
        (["predict", "PROGRAM", "task:digits:2", "--frozen-draws", "-1"], ["frozen_draws"]),
        (["predict", "QUANTISED", "task:digits:2", "--frozen-draws", "3"], ["--backend"]),
        (["predict", "PROGRAM", "task:digits:2", "--device", "nowhere"], ["nowhere"]),
        (["predict", "PROGRAM", "task:digits:2", "--draws", "0"], ["draws"]),
    ],
)
def test_integers_take_what_they_are_made_of(
    cli: Cli,
    digits_posterior: Path,
    digits_quantised: Path,
    digits_program: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    command: list[str],
    words: list[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    places = {"FLOAT": digits_posterior, "QUANTISED": digits_quantised, "PROGRAM": digits_program}
    before = {path: path.read_bytes() for path in digits_program.parent.rglob("*") if path.is_file()}
    for name, place in places.items():
        command = [part.replace(name, str(place)) for part in command]
    refused(cli(*command), *words)
    assert {path: path.read_bytes() for path in before} == before
    assert list(tmp_path.iterdir()) == []


def newer(content: bytes) -> bytes:
    """The same program said to be of a later version, its length and its hash made right again."""
    size = int.from_bytes(content[:8], "little")
    header = json.loads(content[8 : 8 + size])
    entry = header["__metadata__"]["qbayes"]
    text = entry[entry.index('"program":') + len('"program":') : -1].replace('"version":1', '"version":2')
    tensors = load_tensors(content)
    header["__metadata__"]["qbayes"] = f'{{"sha256":"{content_hash(text, tensors)}","program":{text}}}'
    return save_tensors(tensors, header["__metadata__"])


@pytest.mark.parametrize(
    ("damage", "word"),
    [
        (lambda content: content[:-100], ""),
        (lambda content: content[:200], ""),
        (lambda content: b"", "header"),
        (lambda content: content[:-3] + bytes([content[-3] ^ 1]) + content[-2:], "sha256"),
        (lambda content: content.replace(b"logits", b"l0gits", 1), "sha256"),
        (newer, "version"),
        (lambda content: pickle.dumps({"weights": [1, 2]}), "program"),
        (lambda content: (1 << 62).to_bytes(8, "little") + content[8:], "header"),
        (lambda content: save_tensors({"codes": torch.zeros(3)}), "another kind"),
    ],
    ids=["cut", "header only", "empty", "codes", "name", "newer", "pickle", "huge header", "foreign"],
)
def test_damaged_program(
    cli: Cli, digits_program: Path, tmp_path: Path, damage: Callable[[bytes], bytes], word: str
) -> None:
    file = tmp_path / "m.qbayes"
    file.write_bytes(damage(digits_program.read_bytes()))
    for command in (["inspect", file], ["evaluate", file], ["predict", file, "task:digits:1"]):
        refused(cli(*command), word, str(file))


def test_a_folder_is_no_program(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "m.qbayes").mkdir()
    refused(cli("inspect", tmp_path / "m.qbayes"), "m.qbayes")


def test_a_program_refuses_rows_that_do_not_fit(cli: Cli, digits_program: Path, tmp_path: Path) -> None:
    rows = {
        "shape": (np.zeros((2, 64), np.float32), "(2, 64)"),
        "nan": (np.full((2, 1, 8, 8), np.nan), "NaN"),
        "complex": (np.zeros((2, 1, 8, 8), np.complex64), "complex64"),
        "bool": (np.zeros((2, 1, 8, 8), bool), "bool"),
        "none": (np.zeros((0, 1, 8, 8), np.float32), "at least one row"),
    }
    for name, (x, word) in rows.items():
        np.save(tmp_path / f"{name}.npy", x)
        refused(cli("predict", digits_program, tmp_path / f"{name}.npy"), word)


def test_a_backend_that_cannot_run_says_why_and_names_one_that_can(
    cli: Cli, digits_program: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        BACKENDS["onednn"], "why_not", classmethod(lambda cls, program, device: "no int8 here")
    )
    command = ["predict", digits_program, "task:digits:2"]
    refused(cli(*command, "--backend", "onednn"), "no int8 here", "backend='reference'")
    exact = cli(*command, "--backend", "reference", "--json")
    assert cli(*command, "--json").json["answers"] == exact.json["answers"]


def saved_with(posterior: Path, folder: Path, number: float) -> Path:
    """The posterior with every weight of its first layer set to ``number``."""
    loaded = qb.load_posterior(posterior)
    for member in loaded.members:
        for name in ("hidden.0.weight", "hidden.0.bias"):
            member[name].fill_(number)
    return qb.save_posterior(loaded, folder)


@pytest.mark.parametrize("number", [float("nan"), float("inf")])
def test_calibration_that_meets_nan(cli: Cli, digits_posterior: Path, tmp_path: Path, number: float) -> None:
    source = saved_with(digits_posterior, tmp_path / "p", number)
    for epochs in ("0", "1"):
        command = ["quantize", source, "--epochs", epochs, "--quiet", "--out", tmp_path / "q"]
        refused(cli(*command), "NaN or infinite")
        assert not (tmp_path / "q").exists()


def test_calibration_data_with_nan(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32)
    y = np.arange(40) % 10
    np.savez(tmp_path / "nan.npz", x_train=with_nan(x), y_train=y, x_test=x, y_test=y)
    command = ["quantize", digits_posterior, *QUANTIZE, "--task", tmp_path / "nan.npz"]
    refused(cli(*command, "--out", tmp_path / "q"), "row 3")
    np.savez(tmp_path / "two.npz", x_train=x, y_train=y % 2, x_test=x, y_test=y % 2)
    command = ["quantize", digits_posterior, *QUANTIZE, "--task", tmp_path / "two.npz"]
    refused(cli(*command, "--out", tmp_path / "q"), "number of outputs", "'digits'")
    assert not (tmp_path / "q").exists()


@pytest.mark.parametrize("epochs", ["0", "1"])
def test_an_all_zero_layer_quantises_and_runs(
    cli: Cli, digits_posterior: Path, tmp_path: Path, epochs: str
) -> None:
    """A constant network: its answers are the same for every row, in float and on integers."""
    source = saved_with(digits_posterior, tmp_path / "p", 0.0)
    quantize = ["quantize", source, "--precision", "W4A4", "--epochs", epochs, "--out", tmp_path / "q"]
    assert cli(*quantize, "--quiet").code == 0
    assert cli("lower", tmp_path / "q", "--out", tmp_path / "m.qbayes").code == 0
    told = cli("predict", tmp_path / "m.qbayes", "task:digits:4", "--json")
    assert told.code == 0
    assert len({answer["entropy"] for answer in told.json["answers"]}) == 1


@pytest.mark.parametrize(
    ("layer", "call", "word"),
    [
        ("nn.LayerNorm(16)", "self.extra(h)", "LayerNorm"),
        ("nn.GRU(16, 16, batch_first=True)", "self.extra(h[:, None])[0][:, 0]", "GRU"),
        ("nn.MultiheadAttention(16, 2)", "self.extra(h, h, h)[0]", "Attention"),
        ("nn.Identity()", "h + torch.rand(16)", "rand"),
        ("nn.Identity()", "h if h.sum() > 0 else -h", "control flow"),
    ],
    ids=["layer norm", "recurrent", "attention", "frozen noise", "control flow"],
)
def test_a_layer_that_integers_do_not_know_is_named_before_any_training(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layer: str, call: str, word: str
) -> None:
    monkeypatch.chdir(tmp_path)
    module = f"odd_net_{abs(hash((layer, call)))}"
    Path(f"{module}.py").write_text(
        "import torch\n"
        "from torch import nn\n"
        "class Odd(nn.Module):\n"
        "    def __init__(self):\n"
        "        super().__init__()\n"
        f"        self.first, self.extra, self.last = nn.Linear(64, 16), {layer}, nn.Linear(16, 10)\n"
        "    def forward(self, x):\n"
        "        h = self.first(x.flatten(1))\n"
        f"        return self.last({call})\n"
    )
    own = ["--network", f"{module}:Odd"]
    fitted = cli("fit", "digits", "--method", "pointwise", *own, "--epochs", 1, "--out", "p", "--quiet")
    assert fitted.code == 0, fitted.err
    monkeypatch.setattr(Loop, "run", None)
    refused(cli("quantize", "p", *own, "--out", "q", "--quiet"), word)
    assert not Path("q").exists()


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
    monkeypatch.setenv("QBAYES_DEBUG", "1")
    report_bug(KeyError, error, None)
    assert "KeyError" in capsys.readouterr().err

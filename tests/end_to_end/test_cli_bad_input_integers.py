"""Bad input on the way to integers and on them: refused in three parts before anything is started or lost."""

import json
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load as load_tensors
from safetensors.torch import save as save_tensors

import qbayes as qb
from qbayes.integer.backends.base import BACKENDS
from qbayes.integer.file.file import content_hash
from qbayes.training.loop import Loop
from refusal import refused

Cli = Callable[..., Any]
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
        (["--mixed", "byte"], ["--mixed", "did you mean 'bytes'?"]),
        (["--mixed", "bytes", "--freeze", "2"], ["freeze"]),
        (["--learning-rate", "0"], ["learning_rate"]),
        (["--seed", "-1"], ["seed"]),
        (["--device", "gpu"], ["gpu"]),
        (["--task", "diabetes"], ["(10,)", "'digits'"]),
        (["--task", "digts"], ["did you mean 'digits'?"]),
        (["--network", "resnet18"], ["'resnet18', where 'mlp' is recorded"]),
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
    text = entry[entry.index('"program":') + len('"program":') : -1].replace('"version":2', '"version":3')
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
        refused(cli(*command), "NaN or infinity", "hidden.0")
        assert not (tmp_path / "q").exists()


def test_calibration_data_with_nan(cli: Cli, digits_posterior: Path, tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(40, 1, 8, 8)).astype(np.float32)
    y = np.arange(40) % 10
    holed = x.copy()
    holed[3, 0, 4, 4] = np.nan
    np.savez(tmp_path / "nan.npz", x_train=holed, y_train=y, x_test=x, y_test=y)
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

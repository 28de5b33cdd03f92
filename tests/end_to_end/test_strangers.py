"""Stores and folders from strangers: nothing that a file names is imported, and nothing beside it either."""

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import qbayes as qb
from end_to_end.conftest import Cli
from end_to_end.studies import ALONE, run, run_apart, write_study
from qbayes.errors import BadInput
from qbayes.integer.backends.base import BACKENDS
from qbayes.lab.study.executors.base import EXECUTORS
from qbayes.methods import METHODS
from qbayes.networks import NETWORKS
from qbayes.posterior.storage import save
from qbayes.posterior.storage.save import HEADER
from qbayes.quant.observers import QUANTIZERS
from qbayes.tasks.dataset import DATASETS

STUDY = """
[study]
name = "mine"

[run]
task = "digits"
network = NETWORK
method = "pointwise"
training = {epochs = 1, batch_size = 256}
quantize = {epochs = 0}
evaluate = {draws = 1, shifts = false, confusion = false}

[axes]
precision = ["float", "W8A8"]
"""
NETWORK = '{name = "mlp", hidden = [8]}'
OWN = '{name = "own_of_the_study:small", width = 6}'
OWN_CODE = """
from torch import nn
def small(input_shape, outputs, width=4):
    return nn.Sequential(nn.Flatten(), nn.Linear(64, width), nn.ReLU(), nn.Linear(width, outputs[0]))
"""
# whatever of it is imported, called or made leaves a mark.
PLANTED = """
from pathlib import Path
from torch import nn
MARK = Path(MARK_PATH)
MARK.touch()
def network(**given):
    MARK.touch()
    return nn.Linear(1, 1)
"""


@pytest.fixture
def mark(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The file that planted code would make; the code can be imported from here."""
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)
    mark = tmp_path / "mark"
    (here / "planted.py").write_text(PLANTED.replace("MARK_PATH", repr(str(mark))))
    return mark


def architectures(mark: Path) -> dict[str, dict[str, Any]]:
    """What a stranger may name: a command of the system, a module beside the study, and one by a path."""
    shape = {"input_shape": [1, 8, 8], "outputs": [10], "kind": "classification"}
    return {
        "os:system": {"name": "os:system", **shape, "options": {"command": f"touch {mark}"}},
        "planted:network": {"name": "planted:network", **shape, "options": {}},
        "planted": {"name": "planted", **shape, "options": {}},
        "../planted": {"name": "../planted", **shape, "options": {}},
        "qbayes.networks.planted": {"name": "qbayes.networks.planted", **shape, "options": {}},
    }


def plant(folder: Path, architecture: dict[str, Any]) -> None:
    """Put another network into a posterior's JSON, with hashes that are right."""
    header = json.loads((folder / HEADER).read_bytes())
    header["architecture"] = architecture
    header["content_sha256"] = save._content_hash(header)
    (folder / HEADER).write_text(json.dumps(header))


def only(store: Path, stage: str) -> Path:
    (folder,) = (path for path in (store / stage).iterdir())
    return folder


@pytest.fixture(scope="module")
def honest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of the study, as it should be."""
    folder = tmp_path_factory.mktemp("honest")
    done = run(
        "run", write_study(folder, STUDY.replace("NETWORK", NETWORK)), "--store", folder / "store", *ALONE
    )
    assert done.returncode == 0, done.stderr
    return folder / "store"


@pytest.fixture
def stranger(honest: Path, tmp_path: Path) -> Path:
    """A copy of it in which the float posterior alone is done."""
    shutil.copytree(honest, tmp_path / "stranger")
    for stage in ("quantised", "program", "scores"):
        shutil.rmtree(tmp_path / "stranger" / stage)
    (tmp_path / "stranger" / "results.jsonl").write_bytes(b"")
    return tmp_path / "stranger"


def table(store: Path) -> bytes:
    return (store / "results.csv").read_bytes()


@pytest.mark.parametrize("name", ["os:system", "../planted"])
def test_a_study_makes_what_a_borrowed_posterior_should_have_been(
    name: str, stranger: Path, honest: Path, mark: Path, tmp_path: Path
) -> None:
    plant(only(stranger, "float"), architectures(mark)[name])
    study = write_study(tmp_path, STUDY.replace("NETWORK", NETWORK))
    found = run("run", study, "--store", tmp_path / "new", "--from", stranger, *ALONE, "--json")
    assert found.returncode == 0, found.stderr
    assert not mark.exists()
    (note,) = json.loads(found.stdout)["notes"]
    assert name in note
    assert "the network of its study" in note
    assert "made again" in note
    assert table(tmp_path / "new") == table(honest)


def test_a_copied_store_is_gone_on_with_and_runs_nothing_of_it(
    stranger: Path, honest: Path, mark: Path, tmp_path: Path
) -> None:
    """Also the quantised posterior has a name in it."""
    shutil.copytree(honest / "quantised", stranger / "quantised")
    for stage, name in (("float", "os:system"), ("quantised", "planted:network")):
        plant(only(stranger, stage), architectures(mark)[name])
    study = write_study(tmp_path, STUDY.replace("NETWORK", NETWORK))
    found = run_apart("run", study, "--store", stranger, *ALONE)
    assert found.returncode == 0, found.stderr
    assert not mark.exists()
    assert found.stderr.count("damaged") >= 2
    assert table(stranger) == table(honest)


@pytest.fixture(scope="module")
def own(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of a study with a network of one's own, and the module beside it."""
    folder = tmp_path_factory.mktemp("own")
    (folder / "own_of_the_study.py").write_text(OWN_CODE)
    study = write_study(folder, STUDY.replace("NETWORK", OWN))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        done = run_apart("run", study, "--store", "store", *ALONE)
    assert done.returncode == 0, done.stderr
    return folder


def test_the_factory_of_the_study_s_own_file_is_imported_and_no_other(
    own: Path, mark: Path, tmp_path: Path
) -> None:
    """Neither another name, nor other options of the right one, from the file."""
    shutil.copy(own / "own_of_the_study.py", ".")
    study = own / "small.toml"
    planted = architectures(mark)["planted:network"]
    recorded = json.loads((only(own / "store", "float") / HEADER).read_bytes())["architecture"]
    larger = recorded | {"options": {"width": 1 << 20}}
    for number, architecture in enumerate((planted, larger)):
        store = tmp_path / f"copy {number}"
        shutil.copytree(own / "store", store)
        shutil.rmtree(store / "scores")
        plant(only(store, "float"), architecture)
        found = run("run", study, "--store", store, *ALONE)
        assert found.returncode == 0, found.stderr
        assert "the network of its study" in found.stderr
        assert table(store) == table(own / "store")
    assert not mark.exists()


@pytest.mark.parametrize(
    "name", ["os:system", "planted:network", "planted", "../planted", "qbayes.networks.planted"]
)
def test_commands_import_what_the_caller_names_and_nothing_else(
    name: str, cli: Cli, stranger: Path, mark: Path, tmp_path: Path
) -> None:
    folder = only(stranger, "float")
    plant(folder, architectures(mark)[name])
    commands: list[list[object]] = [
        ["evaluate", folder],
        ["predict", folder, "task:digits:2"],
        ["inspect", folder],
        ["quantize", folder, "--out", tmp_path / "q", "--epochs", "0"],
        ["lower", folder, "--out", tmp_path / "m.qbayes"],
        ["export", folder, "--out", tmp_path / "e", "--target", "onnx"],
        ["evaluate", folder, "--network", "mlp"],
        ["fit", "digits", "--method", "bbb", "--start", folder, "--out", tmp_path / "b", "--epochs", "1"],
    ]
    for command in commands:
        found = cli(*command)
        assert found.code == 2, f"{command}: {found.err}"
        assert "got:" in found.err
        assert "do:" in found.err
        assert not mark.exists(), command
    with pytest.raises(BadInput) as caught:
        qb.load_posterior(folder)
    assert caught.value.do
    assert not mark.exists()


def test_one_s_own_posterior_is_opened_by_the_name_that_is_recorded(
    own: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(own)
    folder = only(own / "store", "float")
    unnamed = cli("evaluate", folder)
    assert unnamed.code == 2
    assert "'own_of_the_study:small'" in unnamed.err
    assert "name its factory on the command line" in unnamed.err
    other = cli("evaluate", folder, "--network", "own_of_the_study:other")
    assert other.code == 2
    assert "'own_of_the_study:small' is recorded" in other.err
    assert cli("evaluate", folder, "--network", "own_of_the_study:small", "--json").code == 0


def test_workers_import_nothing_from_where_the_user_stands(
    stranger: Path, honest: Path, mark: Path, tmp_path: Path
) -> None:
    """A folder that was unpacked and entered: the command imports nothing from it, and so do its workers."""
    for module in ("sitecustomize", "usercustomize", "json", "numpy", "pandas", "torch", "qbayes"):
        (Path.cwd() / f"{module}.py").write_text(f"open({str(mark)!r}, 'w')\n")
    study = write_study(tmp_path, STUDY.replace("NETWORK", NETWORK))
    command = [sys.executable, "-P", "-c", "import sys; from qbayes.cli import main; sys.exit(main())"]
    found = subprocess.run(
        [*command, "study", "run", str(study), "--store", str(stranger), *ALONE],
        capture_output=True,
        text=True,
        check=False,
    )
    assert found.returncode == 0, found.stderr
    assert not mark.exists()
    assert table(stranger) == table(honest)


def test_registered_names_are_no_paths_and_import_nothing(mark: Path) -> None:
    for registry in (NETWORKS, METHODS, QUANTIZERS, BACKENDS, EXECUTORS, DATASETS):
        for name in ("planted", "../planted", "planted:network", ".planted", "os", "__init__", "base", ""):
            with pytest.raises(BadInput):
                registry[name]
    assert not mark.exists()
    assert "planted" not in sys.modules

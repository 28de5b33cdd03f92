"""Saved posteriors: bit-equal when read back, refused when damaged, and never lost."""

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import save as save_tensors
from torch import Tensor, nn

import qbayes as qb
from fine_tuned import tuning
from handmade.permissions import permissions_hold  # noqa: F401  (a fixture)
from qbayes import Budget, Precision, Task, fit, quantize
from qbayes.errors import BadFile, BadInput, QbayesError
from qbayes.methods import make_method
from qbayes.posterior.likelihood import Categorical, ConstantNoise, Gaussian
from qbayes.posterior.network import NetworkPosterior
from qbayes.posterior.signature import Signature, Standardize
from qbayes.posterior.sites import Site, place_sites
from qbayes.posterior.storage import save as save_module
from qbayes.posterior.storage.save import (
    HEADER,
    WEIGHTS,
    load_posterior,
    read_header,
    save_posterior,
    write_atomically,
)


def network() -> nn.Module:
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 3))


SITES = {
    "mask": [Site(0, "mask", "3", "before", 0.25), Site(1, "mask", "2", "after", 0.1, True)],
    "gaussian": [
        Site(0, "gaussian", "0", "replace", sigma=0.1, bias_number=1),
        Site(2, "gaussian", "3", "replace"),
    ],
    "members": [],
}


def make(kind: str = "mask", members: int = 2, regression: bool = False) -> NetworkPosterior:
    torch.manual_seed(len(kind) + members)
    modules: list[nn.Module] = [place_sites(network(), SITES[kind]) for _ in range(members)]
    if regression:
        modules = [ConstantNoise(module, (3,)) for module in modules]
    for module in modules:
        for parameter in module.parameters():
            nn.init.normal_(parameter)
    scale = Standardize(torch.randn(4), torch.rand(4) + 0.1)
    target = Standardize(torch.randn(3), torch.rand(3) + 0.1) if regression else None
    likelihood = Gaussian((3,)) if regression else Categorical(3)
    signature = Signature("test", (4,), scale, likelihood, target, ("ä", "b", "c"))
    states = [module.state_dict() for module in modules]
    return NetworkPosterior(modules[0], states, signature, provenance={"seed": 3, "note": "ü"})


@pytest.mark.parametrize("regression", [False, True])
@pytest.mark.parametrize("kind", SITES)
def test_bit_equal_when_read_back(kind: str, regression: bool, tmp_path: Path) -> None:
    posterior = make(kind, 3, regression)
    folder = save_posterior(posterior, tmp_path / "deep" / "posterior")
    again = load_posterior(folder, network())
    assert again.sites == posterior.sites
    assert again.provenance == posterior.provenance
    assert again.signature.to_json() == posterior.signature.to_json()
    for old, new in zip(posterior.members, again.members, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) and old[name].dtype == new[name].dtype for name in old)
    x = torch.randn(5, 4)
    before, after = posterior.predict(x, draws=6, seed=9), again.predict(x, draws=6, seed=9)
    assert torch.equal(before.draws, after.draws)
    assert torch.equal(before.variance, after.variance)
    assert sorted(path.name for path in folder.iterdir()) == [HEADER, WEIGHTS]


def test_special_numbers_survive(tmp_path: Path) -> None:
    posterior = make()
    values = torch.tensor([-0.0, 1e-45, 3.4e38, 1 / 3])
    posterior.members[0]["0.weight"][0] = values
    again = load_posterior(save_posterior(posterior, tmp_path / "p"), network())
    found = again.members[0]["0.weight"][0]
    assert torch.equal(found.view(torch.int32), values.view(torch.int32))


def test_the_network_is_built_from_its_architecture(tmp_path: Path) -> None:
    posterior = make()
    posterior.architecture = {"name": "ours", "options": {"width": 6}}
    folder = save_posterior(posterior, tmp_path / "p")
    asked: list[Any] = []

    def build(architecture: Any) -> nn.Module:
        asked.append(architecture)
        return network()

    assert load_posterior(folder, build).architecture == posterior.architecture
    assert asked == [posterior.architecture]


def small_state_change(module: nn.Module) -> nn.Module:
    module[3] = nn.Linear(6, 4)
    return module


@pytest.mark.parametrize(
    ("other", "why"),
    [
        (lambda: small_state_change(network()), "the parameters that were saved"),
        (lambda: network().double(), "the parameters that were saved"),
        (lambda: nn.Linear(4, 3), "module"),
        (lambda: nn.Sequential(*[nn.Identity() for _ in range(4)]), "the parameters that were saved"),
    ],
)
def test_another_network_is_refused(other: Callable[[], nn.Module], why: str, tmp_path: Path) -> None:
    folder = save_posterior(make(), tmp_path / "p")
    with pytest.raises(BadInput, match=why):
        load_posterior(folder, other())


def mutants(payload: bytes, rng: np.random.Generator) -> list[bytes]:
    """Flipped bits, foreign bytes, cuts, insertions and repetitions."""
    found: list[bytes] = []
    for _ in range(110):
        data = bytearray(payload)
        place = int(rng.integers(len(data)))
        match int(rng.integers(6)):
            case 0 | 1:
                data[place] ^= 1 << int(rng.integers(8))
            case 2:
                data[place] = int(rng.integers(256))
            case 3:
                del data[place:]
            case 4:
                data[place:place] = bytes(rng.integers(0, 256, 3, dtype=np.uint8))
            case _:
                del data[place : place + int(rng.integers(1, 9))]
        if bytes(data) != payload:
            found.append(bytes(data))
    return [*found, b"", b"\0" * 64, payload + b"x", payload[::-1]]


@pytest.mark.parametrize("name", [HEADER, WEIGHTS])
@pytest.mark.parametrize("kind", ["mask", "gaussian"])
def test_damaged_bytes_are_refused(kind: str, name: str, tmp_path: Path) -> None:
    folder = save_posterior(make(kind, 1), tmp_path / "p")
    payload = (folder / name).read_bytes()
    meant = json.loads((folder / HEADER).read_bytes())
    refused = 0
    for mutant in mutants(payload, np.random.default_rng(0)):
        (folder / name).write_bytes(mutant)
        try:
            found = load_posterior(folder, network())
        except BadInput:
            refused += 1
            continue
        # only spacing may change unnoticed: what is read must be what was written.
        assert name == HEADER
        assert json.loads(mutant) == meant
        assert found.signature.to_json() == meant["signature"]
    assert refused > 90


def hostile(folder: Path, header: dict[str, Any], tensors: dict[str, Tensor] | None = None) -> None:
    """A file with right hashes and wrong content: made, not damaged."""
    if tensors is not None:
        payload = save_tensors(tensors)
        (folder / WEIGHTS).write_bytes(payload)
        header["weights_sha256"] = save_module.hashlib.sha256(payload).hexdigest()
    header["content_sha256"] = save_module._content_hash(header)
    (folder / HEADER).write_text(json.dumps(header))


def test_hostile_headers_are_refused(tmp_path: Path) -> None:
    """Every entry in turn replaced by things of every other kind, with the hashes made right."""
    folder = save_posterior(make("gaussian", 1), tmp_path / "p")
    header = json.loads((folder / HEADER).read_text())
    strange: list[Any] = [
        None,
        True,
        -1,
        0,
        2**70,
        1e308,
        "x",
        [],
        {},
        [[1]],
        [None],
        {"kind": "categorical"},
    ]
    nested = [("signature", key) for key in header["signature"]] + [("sites", 0)]
    tried = 0
    for path in [(key,) for key in header] + nested:
        for value in strange:
            mutant = json.loads(json.dumps(header))
            holder = mutant
            for key in path[:-1]:
                holder = holder[key]
            if holder[path[-1]] == value or path[0] in ("content_sha256",):
                continue
            holder[path[-1]] = value
            hostile(folder, mutant)
            tried += 1
            try:
                load_posterior(folder, network()).predict(torch.zeros(2, 4), draws=2)
            except QbayesError:
                continue
            harmless = path[0] in ("provenance", "architecture", "constant_noise") or path[-1] in (
                "task",
                "labels",
            )
            assert harmless, f"{path} = {value!r} was taken"
    assert tried > 150


@pytest.mark.parametrize(
    "rename",
    [
        lambda name: name.replace("0/", "7/"),
        lambda name: name.replace("0/", "-1/"),
        lambda name: name.replace("0/", ""),
        lambda name: name.replace("0/", "zero/"),
        lambda name: name.replace("weight", "wait"),
    ],
)
def test_hostile_weights_are_refused(rename: Callable[[str], str], tmp_path: Path) -> None:
    posterior = make("members", 1)
    folder = save_posterior(posterior, tmp_path / "p")
    header = json.loads((folder / HEADER).read_text())
    hostile(folder, header, {rename(f"0/{n}"): t.clone() for n, t in posterior.members[0].items()})
    with pytest.raises(BadInput):
        load_posterior(folder, network())


def test_weights_that_are_not_safetensors(tmp_path: Path) -> None:
    folder = save_posterior(make(), tmp_path / "p")
    header = json.loads((folder / HEADER).read_text())
    payload = b"\xff" * 100
    (folder / WEIGHTS).write_bytes(payload)
    header["weights_sha256"] = save_module.hashlib.sha256(payload).hexdigest()
    hostile(folder, header)
    with pytest.raises(BadFile, match="safetensors"):
        load_posterior(folder, network())


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ('{"format": "other"}', "qbayes posterior"),
        ("[1, 2]", "qbayes posterior"),
        ("null", "qbayes posterior"),
        ('{"format": "qbayes-posterior", "version": 2}', "version"),
        ('{"format": "qbayes-posterior"}', "version"),
        ('{"format": "qbayes-posterior", "version": 1}', "sha256"),
        ('{"format": "qbayes-posterior", "version": 1, "x": NaN}', "sha256"),
        ("{", "readable JSON"),
        ("[" * 100_000, "readable JSON"),
        ("\ud800".encode("utf-8", "surrogatepass").decode("latin1"), "readable JSON"),
    ],
)
def test_foreign_headers(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / HEADER).write_text(text, encoding="latin1")
    with pytest.raises(BadFile, match=why):
        read_header(tmp_path)


def test_missing_files(tmp_path: Path) -> None:
    with pytest.raises(BadFile, match=r"no .*posterior\.json"):
        load_posterior(tmp_path / "nothing", network())
    folder = save_posterior(make(), tmp_path / "p")
    (folder / WEIGHTS).unlink()
    with pytest.raises(BadFile, match="weights"):
        load_posterior(folder, network())
    (folder / HEADER).unlink()
    (folder / HEADER).mkdir()
    with pytest.raises(BadFile, match="readable"):
        load_posterior(folder, network())


def test_weights_of_another_posterior_are_refused(tmp_path: Path) -> None:
    one, two = (
        save_posterior(make("mask", 2), tmp_path / "1"),
        save_posterior(make("mask", 3), tmp_path / "2"),
    )
    (one / WEIGHTS).write_bytes((two / WEIGHTS).read_bytes())
    with pytest.raises(BadFile, match="belongs to another posterior"):
        load_posterior(one, network())


def test_existing_folders(tmp_path: Path) -> None:
    folder = save_posterior(make(), tmp_path / "p")
    with pytest.raises(BadFile, match="overwrite"):
        save_posterior(make(), folder)
    newer = make("members", 1)
    assert load_posterior(save_posterior(newer, folder, overwrite=True), network()).sites == ()
    (folder / "thesis.tex").write_text("years of work")
    with pytest.raises(BadFile, match="nothing in it will be touched"):
        save_posterior(make(), folder, overwrite=True)
    assert (folder / "thesis.tex").read_text() == "years of work"
    (tmp_path / "file").touch()
    for place in ("file", "file/below", "x" * 300):
        with pytest.raises(BadFile):
            save_posterior(make(), tmp_path / place)


@pytest.mark.usefixtures("permissions_hold")
def test_read_only_folder(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(BadFile, match="must be writable"):
        save_posterior(make(), tmp_path / "p")


@pytest.mark.parametrize("call", range(6))
@pytest.mark.parametrize("function", ["fsync", "replace"])
def test_full_disk_harms_nothing(
    function: str, call: int, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The disk fills at the n-th flush or rename of an overwriting save."""
    old = make("mask", 2)
    folder = save_posterior(old, tmp_path / "p")
    content = {path.name: path.read_bytes() for path in folder.iterdir()}
    real, calls = getattr(os, function), [0]

    def full(*args: Any) -> Any:
        calls[0] += 1
        if calls[0] == call + 1:
            raise OSError(errno.ENOSPC, "No space left on device")
        return real(*args)

    with monkeypatch.context() as patch:
        patch.setattr(os, function, full)
        message = ""
        try:
            save_posterior(make("members", 1), folder, overwrite=True)
        except BadFile as error:
            message = error.got
    assert ("No space" in message) == (call < calls[0]), "an error was swallowed"
    if message:
        assert {path.name: path.read_bytes() for path in folder.iterdir()} == content
    else:
        assert load_posterior(folder, network()).sites == ()
    assert {path.name for path in folder.iterdir()} == {HEADER, WEIGHTS}


def test_full_disk_leaves_no_half_of_a_new_posterior(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    real = os.replace

    def second_fails(source: Any, target: Any) -> None:
        if str(target).endswith(HEADER):
            raise OSError(errno.ENOSPC, "No space left on device")
        real(source, target)

    monkeypatch.setattr(os, "replace", second_fails)
    with pytest.raises(BadFile, match="No space"):
        save_posterior(make(), tmp_path / "p")
    assert list((tmp_path / "p").iterdir()) == []


def test_atomic_write_replaces_or_keeps(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    path = tmp_path / "a" / "b.json"
    write_atomically(path, b"old")
    write_atomically(path, b"new")
    assert path.read_bytes() == b"new"

    def interrupted(_: int) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(os, "fsync", interrupted)
    with pytest.raises(KeyboardInterrupt):
        write_atomically(path, b"newest")
    assert path.read_bytes() == b"new"
    assert [p.name for p in path.parent.iterdir()] == ["b.json"]


@pytest.mark.parametrize("provenance", [{"x": float("nan")}, {"x": object()}, {"x": {1, 2}}])
def test_provenance_must_be_json(provenance: dict[str, Any], tmp_path: Path) -> None:
    posterior = make()
    posterior.provenance = provenance
    with pytest.raises(BadInput, match="JSON"):
        save_posterior(posterior, tmp_path / "p")
    assert not (tmp_path / "p").exists()


@pytest.mark.parametrize("method", ["pointwise", "mcd", "bbb"])
def test_shared_layers_are_saved(tmp_path: Path, method: str) -> None:
    """One layer under two names, and two layers with one weight: both come back bit-equal."""
    shared, tied = nn.Linear(4, 4), nn.Linear(4, 4)
    network = nn.Sequential(shared, nn.ReLU(), shared, nn.ReLU(), tied, nn.Linear(4, 4), nn.Linear(4, 2))
    network[5].weight = tied.weight
    task = Task.from_arrays(torch.randn(20, 4), torch.arange(20) % 2, kind="classification")
    post = fit(network, task, make_method(method), Budget(epochs=1), device="cpu", progress=False)
    save_posterior(post, tmp_path / "out")
    back = load_posterior(tmp_path / "out", network)
    assert torch.equal(back.predict(torch.ones(2, 4)).draws, post.predict(torch.ones(2, 4)).draws)


@pytest.mark.parametrize("precision", [Precision(4, 5), Precision.preset("paper")])
@pytest.mark.parametrize("kind", SITES)
def test_a_quantised_posterior_is_bit_equal_when_read_back(
    kind: str, precision: Precision, tmp_path: Path
) -> None:
    posterior = make(kind, 2, regression=True)
    x, y = torch.randn(40, 4), torch.randn(40, 3)
    task = Task.from_arrays(x, y, x, y, kind="regression", name="test")
    posterior = NetworkPosterior(posterior.network, posterior.members, task.signature)
    quantised_posterior = quantize(
        posterior, task, precision, tuning(epochs=0, batch_size=20), device="cpu", progress=False
    )
    folder = save_posterior(quantised_posterior, tmp_path / "quantised")
    again = qb.load_posterior(folder, network())
    assert again.quantised == precision.for_likelihood(task.signature.likelihood).to_json()
    assert again.sites == posterior.sites
    for old, new in zip(quantised_posterior.members, again.members, strict=True):
        assert old.keys() == new.keys()
        assert all(torch.equal(old[name], new[name]) and old[name].dtype == new[name].dtype for name in old)
    before, after = (one.predict(x, draws=6, seed=9) for one in (quantised_posterior, again))
    assert torch.equal(before.draws, after.draws)
    assert torch.equal(before.variance, after.variance)
    one, other = (qb.lower(made).members for made in (quantised_posterior, again))
    for old, new in zip(one, other, strict=True):
        assert old.zeros == new.zeros
        assert old.scales == new.scales
        for op, constants in old.constants.items():
            assert all(torch.equal(value, new.constants[op][name]) for name, value in constants.items())
    with pytest.raises(BadInput, match="is quantised"):
        load_posterior(folder, network())


def test_files_have_the_rights_that_the_user_gives(tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    write_atomically(tmp_path / "ours", b"content")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "plain").stat().st_mode

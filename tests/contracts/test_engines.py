"""Every engine of the benchmark: it answers as the network does, with as many draws as it was asked for.

Nothing here depends on how fast the machine is. Engines whose package is absent are shown to say so.
"""

import functools
from pathlib import Path

import pytest
import torch
from _pytest.mark.structures import ParameterSet

import needs
from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.integer.posterior import load
from qbayes.lab.bench.engines.base import ENGINES, all_engines, default_engines
from qbayes.lab.bench.subjects import METHODS, Subject, make_subject
from qbayes.posterior.network import NetworkPosterior
from qbayes.quant.precision import Precision

W8A8 = Precision(weight=8, activation=8)
DRAWS, ROWS = 4, 6
# Answers of a pointwise network: float engines sum in another order, int8 ones round (probabilities).
TOLERANCE = {"float": 1e-5, "int8": 0.01}


@functools.cache
def subject(network: str, method: str) -> Subject:
    return make_subject(network, method, W8A8, members=DRAWS)


@functools.cache
def mean_of_many_draws(network: str, method: str) -> torch.Tensor:
    one = subject(network, method)
    return one.posterior.predict(one.network.rows(ROWS), 32).mean


def answered(name: str, network: str, method: str, folder: Path, draws: int = DRAWS) -> torch.Tensor:
    """What the engine answers; the test is skipped where its package is not installed."""
    engine, one = ENGINES[name], subject(network, method)
    for package in engine.packages:
        needs.package(package)
    needs.require(engine.why_missing() is None, needs.COMPILER)
    files = engine.write(one, folder, draws)
    assert files
    assert all(path.parent == folder and path.stat().st_size > 0 for path in files)
    return engine.open(folder)(one.network.rows(ROWS), draws)


def able(*methods: str) -> list[ParameterSet]:
    """Engine and method where the engine can run it; compiling takes a minute."""
    return [
        pytest.param(name, method, marks=pytest.mark.full if name == "compile" else ())
        for method in methods
        for name in all_engines()
        if ENGINES[name].why_not(method) is None
    ]


@pytest.mark.parametrize("network", ["lenet", "mlp"])
@pytest.mark.parametrize(("name", "method"), able("pointwise"))
def test_a_pointwise_network_is_answered_as_float_does(
    name: str, method: str, network: str, tmp_path: Path
) -> None:
    found = answered(name, network, method, tmp_path, draws=1)
    one = subject(network, method)
    wanted = one.posterior.predict(one.network.rows(ROWS), 1).draws
    # a regression answers in the targets' units.
    scale = float(wanted.abs().max()) if network == "mlp" else 1.0
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= TOLERANCE[ENGINES[name].numbers] * scale


@pytest.mark.parametrize(("name", "method"), able("mcd", "bbb"))
def test_draws_of_one_member_differ_and_lie_around_the_mean_network(
    name: str, method: str, tmp_path: Path
) -> None:
    found = answered(name, "lenet", method, tmp_path)
    assert found.shape == (DRAWS, ROWS, 10)
    assert all(not torch.equal(found[0], other) for other in found[1:])
    # rows of one draw have masks of their own, but the probabilities stay near those of the other engines.
    assert float((found.mean(0) - mean_of_many_draws("lenet", method)).abs().max()) < 0.05


@pytest.mark.parametrize(("name", "method"), able("sghmc"))
def test_draws_of_an_ensemble_go_through_its_members_in_order(name: str, method: str, tmp_path: Path) -> None:
    found = answered(name, "lenet", method, tmp_path, draws=2)
    one = subject("lenet", method)
    if ENGINES[name].numbers == "float" or name.endswith("_int8"):
        wanted = one.posterior.predict(one.network.rows(ROWS), 2).draws
    else:
        # members of a program are moved by codes, those of the float posterior by numbers.
        wanted = load(one.program, "reference").predict(one.network.rows(ROWS), 2).draws
    assert float((found - wanted).abs().max()) <= TOLERANCE[ENGINES[name].numbers]
    assert not torch.equal(found[0], found[1])


@pytest.mark.parametrize("name", all_engines())
def test_an_engine_without_its_package_says_how_to_get_it(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("qbayes.lab.bench.engines.base.find_spec", lambda package: None)
    monkeypatch.setattr("shutil.which", lambda program: None)
    engine, why = ENGINES[name], ENGINES[name].why_missing()
    if engine.packages or name == "compile":
        assert why is not None
        assert "install" in why
    else:
        assert why is None


def test_every_engine_says_what_it_is_and_runs_some_method() -> None:
    assert len({ENGINES[name].title for name in ENGINES}) == len(list(ENGINES))
    for name in ENGINES:
        assert any(ENGINES[name].why_not(method) is None for method in METHODS)
    assert set(default_engines()) == set(ENGINES) - {"compile", "reference"}
    # the comparison needs a pass of ours and of others to measure a draw against.
    yardsticks = {name for name in ENGINES if ENGINES[name].yardstick}
    assert {"onednn", "onnxruntime_int8", "openvino_int8"} <= yardsticks
    assert {ENGINES[name].numbers for name in yardsticks} == {"int8"}
    assert all(ENGINES[name].why_not("pointwise") is None for name in yardsticks)


def test_what_is_opened_is_what_was_written(tmp_path: Path) -> None:
    """Files hold the weights: another network's file gives other answers."""
    one = subject("lenet", "pointwise")
    moved = {name: value + 0.05 for name, value in one.posterior.members[0].items()}
    other = NetworkPosterior(
        one.posterior.network, [moved], one.posterior.signature, architecture=one.posterior.architecture
    )
    changed = Subject(one.network, one.method, other, one.program)
    x = one.network.rows(ROWS)
    for name in ("loop", "onnxruntime_float"):
        folder = tmp_path / name
        folder.mkdir()
        engine = ENGINES[name]
        engine.write(changed, folder, 1)
        assert torch.allclose(engine.open(folder)(x, 1), other.predict(x, 1).draws, atol=1e-5)

"""The benchmark: that its numbers mean what they say. No test here depends on how fast the machine is."""

import json
import time
from pathlib import Path

import pytest
import torch

from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.bench.plain import PlainLoop
from qbayes.bench.report import cell_record, document, size_line, speed_head, speed_line, verdicts
from qbayes.bench.size import Size, measure_size
from qbayes.bench.speed import Cell, measure, measure_all
from qbayes.bench.subjects import METHODS, NETWORKS, make_subject
from qbayes.bench.timing import Times, Way, affordable_draws, interleaved
from qbayes.cli import main
from qbayes.errors import BadInput
from qbayes.integer.posterior import load
from qbayes.integer.verify import verify
from qbayes.posterior.mask import Mask
from qbayes.quant.precision import Precision

W8A7 = Precision(weight=8, activation=7)


def cell(network: str, method: str, batch: int, **microseconds: float) -> Cell:
    """A cell whose fastest calls took that long per draw and image; every other call took thrice as long."""
    passes = {way: 1 if way == "pointwise" else 4 for way in microseconds}
    times = {
        way: Times([3e-6 * each * passes[way], 1e-6 * each * passes[way]], passes[way])
        for way, each in microseconds.items()
    }
    return Cell(network, method, "W8A8", batch, 4, 20, 1, times, {"int8": 3, "conv exact": 2})


def test_ratios_are_those_of_the_fastest_calls_per_draw_and_image() -> None:
    one = cell("lenet", "mcd", 256, loop=90.0, predict=60.0, onednn=15.0, pointwise=20.0)
    assert one.ratio("loop", "onednn") == pytest.approx(6.0)
    assert one.ratio("onednn", "pointwise") == pytest.approx(0.75)
    assert one.ratio("loop", "frozen") is None
    record = cell_record(one)
    assert record["ratios"] == {
        "loop/onednn": pytest.approx(6.0),
        "predict/onednn": pytest.approx(4.0),
        "loop/frozen": None,
        "onednn/pointwise": pytest.approx(0.75),
    }
    assert record["ways"]["loop"] == {
        "microseconds": pytest.approx(90.0),
        "median_microseconds": pytest.approx(270.0),
        "calls": 2,
    }


def test_a_cell_says_what_is_not_plain_about_it() -> None:
    notes = cell("lenet", "mcd", 1, loop=1.0).notes
    assert notes == ["4 of 20 draws timed", "2 × conv exact"]
    line = speed_line(cell("lenet", "mcd", 1, loop=1.0, onednn=0.5))
    assert "4 of 20 draws timed; 2 × conv exact" in line
    assert "2.00" in line


def test_aims_are_judged_both_ways() -> None:
    cells = [
        cell("resnet18-standard", "pointwise", 256, loop=40.0, onednn=10.0),
        cell("resnet18-standard", "sghmc", 256, loop=39.0, onednn=10.0),
        cell("resnet18-standard", "bbb", 256, loop=30.0, onednn=10.0),
        cell("resnet18-slim", "bbb", 256, loop=24.0, onednn=10.0),
        cell("resnet18-slim", "bbb", 1, loop=1.0, onednn=10.0),
        cell("lenet", "mcd", 1, loop=1.0, onednn=1.3, pointwise=1.0),
    ]
    assert [line.split(":")[0] for line in verdicts(cells)] == ["met", "MISSED", "met", "MISSED", "MISSED"]


def test_ways_run_in_turn_after_one_round_to_warm_up() -> None:
    calls: list[str] = []
    ways = {name: Way(lambda name=name: calls.append(name), 2) for name in "ab"}
    found = interleaved(ways, seconds=0.0, least_rounds=3)
    assert "".join(calls) == "ab" * 4
    assert [len(times.seconds) for times in found.values()] == [3, 3]
    long = interleaved({"a": Way(lambda: time.sleep(0.02), 1)}, seconds=0.1)
    assert len(long["a"].seconds) >= 3
    assert long["a"].best >= 0.02


def test_fewer_draws_where_time_is_short_but_never_more_than_asked() -> None:
    assert affordable_draws(20, 0.1, 10.0) == 20
    assert affordable_draws(20, 1.0, 5.0) == 5
    assert affordable_draws(20, 9.0, 5.0) == 2
    assert affordable_draws(1, 9.0, 5.0) == 1


def test_the_loop_is_plain_torch_and_draws_anew_each_time() -> None:
    x = NETWORKS["mlp"].rows(6)
    for method in ("mcd", "bbb"):
        loop = PlainLoop(make_subject("mlp", method, W8A7).posterior)
        assert not any(isinstance(module, Mask) for module in loop.networks[0].modules())
        found = loop(x, 3)
        assert isinstance(found, dict)
        assert found["mean"].shape == (3, 6, 1)
        assert not torch.equal(found["mean"][0], found["mean"][1])
    posterior = make_subject("mlp", "pointwise", W8A7).posterior
    found = PlainLoop(posterior)(x, 2)
    assert isinstance(found, dict)
    scale = posterior.signature.target
    assert scale is not None
    assert torch.allclose(scale.invert(found["mean"]), posterior.predict(x, 2).draws, atol=1e-4)


def test_members_are_sound_programs_of_their_own() -> None:
    subject = make_subject("mlp", "sghmc", W8A7, members=3)
    verify(subject.program)
    assert len(subject.posterior.networks) == len(subject.program.members) == 3
    draws = load(subject.program, "onednn").predict(subject.network.rows(4), 3).draws
    assert not torch.equal(draws[0], draws[1])


@pytest.mark.parametrize("method", METHODS)
def test_a_cell_times_every_way(method: str) -> None:
    subject = make_subject("mlp", method, W8A7, members=2)
    pointwise = make_subject("mlp", "pointwise", W8A7)
    found = measure("mlp", subject, pointwise, batch=3, draws=2, seconds=0.05)
    extra = {"mcd": {"pointwise"}, "bbb": {"frozen"}}.get(method, set())
    assert set(found.times) == {"loop", "predict", "onednn"} | extra
    assert found.draws == (1 if method == "pointwise" else 2)
    assert found.times["onednn"].passes == 3 * found.draws
    assert found.name == f"mlp/{method}/W8A7/batch3"
    assert ("one draw" in " ".join(found.notes)) == (method == "pointwise")


def test_all_cells_come_in_order() -> None:
    cells = list(measure_all(["mlp"], ["mcd", "pointwise"], [1, 2], W8A7, draws=2, seconds=0.0))
    assert [one.name for one in cells] == [
        *("mlp/mcd/W8A7/batch1", "mlp/mcd/W8A7/batch2"),
        *("mlp/pointwise/W8A7/batch1", "mlp/pointwise/W8A7/batch2"),
    ]
    written = json.loads(json.dumps(document({"threads": 1}, {"draws": 2}, cells, []), allow_nan=False))
    assert [one["name"] for one in written["cells"]] == [one.name for one in cells]
    assert len(speed_head("W8A7", 1)) == 3


def test_a_size_counts_two_codes_for_a_gaussian_weight() -> None:
    size = Size("lenet", "bbb", 4, 1_000_000, 2, 1_050_000)
    assert size.float_bytes == 8_000_000
    assert size.ratio == 1.05
    assert size.passes is True
    assert Size("lenet", "bbb", 4, 1_000_000, 2, 1_050_001).passes is False
    assert Size("mlp", "bbb", 4, 20_000, 2, 10**9).passes is None
    assert "NO" in size_line(Size("lenet", "pointwise", 8, 1_000_000, 1, 2_000_000))


@pytest.mark.parametrize("method", ["pointwise", "bbb"])
@pytest.mark.parametrize("bits", [8, 4, 3])
def test_files_are_as_small_as_their_codes(method: str, bits: int) -> None:
    size = measure_size("lenet", method, bits)
    assert size.weights == 1_255_500
    assert size.passes, size_line(size)


def test_the_command_prints_and_writes_its_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "bench.json"
    words = "--networks mlp --methods bbb --batch 2 --draws 2 --seconds 0 --threads 1 --precision w4a4"
    assert main(["bench", *words.split(), "--out", str(file)]) == 0
    printed = capsys.readouterr().out
    assert "mlp               bbb" in printed
    written = json.loads(file.read_text())
    assert [one["name"] for one in written["cells"]] == ["mlp/bbb/W4A4/batch2"]
    assert {(one["method"], one["bits"]) for one in written["sizes"]} == {("bbb", 8), ("bbb", 4), ("bbb", 3)}
    assert main(["bench", *words.split(), "--out", str(file)]) == 2


@pytest.mark.parametrize(
    "words", ["--networks lenets", "--methods bbb,bbb", "--batch 0", "--precision 8", "--draws 0"]
)
def test_the_command_refuses_what_it_does_not_know(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 2
    assert "must" in capsys.readouterr().err


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(BadInput, match="lenet"):
        make_subject("lenett", "mcd", W8A7)
    with pytest.raises(BadInput, match="mcd"):
        make_subject("mlp", "mcdd", W8A7)

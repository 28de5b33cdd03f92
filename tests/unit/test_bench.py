"""The benchmark: that its numbers mean what they say. No test here depends on how fast the machine is."""

import json
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from handmade.threads import one_thread  # noqa: F401  (a fixture of every test here)
from qbayes.cli import main
from qbayes.errors import BadInput
from qbayes.integer.posterior import load
from qbayes.integer.proof.verify import verify
from qbayes.lab.bench.engines.base import ENGINES
from qbayes.lab.bench.engines.posteriors import PlainLoop
from qbayes.lab.bench.figure import draw
from qbayes.lab.bench.measure import (
    Memory,
    Roofline,
    Size,
    Times,
    affordable_draws,
    burst,
    interleaved,
    measure_size,
    operations,
)
from qbayes.lab.bench.report import cell_lines, cell_record, document, size_line, verdicts
from qbayes.lab.bench.result import Cell, Row
from qbayes.lab.bench.speed import Settings, measure, measure_all
from qbayes.lab.bench.subjects import METHODS, NETWORKS, make_subject
from qbayes.posterior.sites import Mask
from qbayes.quant.precision import Precision

W8A7 = Precision(weight=8, activation=7)


def row(engine: str, method: str, microseconds: float, passes: int = 4) -> Row:
    """A row whose fastest call took that long per draw and image; its other call took thrice as long."""
    times = Times([3e-6 * microseconds * passes, 1e-6 * microseconds * passes], passes)
    return Row(engine, method, times, "", 1000, Memory(10, 20, 50))


def cell(network: str, method: str, batch: int, *more: Row, **microseconds: float) -> Cell:
    """A cell with these times by the cell's own method, and further rows."""
    rows = [*(row(engine, method, each) for engine, each in microseconds.items()), *more]
    peak = Roofline(int8=1e12, float32=1e11)
    kernels = {"int8": 3, "conv exact": 2}
    return Cell(network, method, "W8A8", batch, 4, 20, 1, rows, 5_000_000, peak, kernels)


def test_ratios_are_those_of_the_fastest_calls_per_draw_and_image() -> None:
    one = cell("lenet", "mcd", 256, row("onednn", "pointwise", 20.0, 1), loop=90.0, predict=60.0, onednn=15.0)
    assert one.ratio("loop", "onednn") == pytest.approx(6.0)
    assert one.draw_over_pass == pytest.approx(0.75)
    assert one.ratio("loop", "frozen") is None
    record = cell_record(one)
    assert record["ratios"] == {
        "loop/onednn": pytest.approx(6.0),
        "predict/onednn": pytest.approx(4.0),
        "loop/frozen": None,
    }
    assert record["rows"][0]["times"] == {
        "microseconds": pytest.approx(90.0),
        "median_microseconds": pytest.approx(270.0),
        "prediction_microseconds": pytest.approx(360.0),
        "calls": 2,
    }
    assert record["rows"][2]["speed"] == pytest.approx(6.0)
    assert record["rows"][0]["memory"] == {"imported": 10, "loaded": 20, "peak": 50, "own": 40}


def test_the_share_is_of_the_peak_in_the_same_numbers() -> None:
    one = cell("lenet", "mcd", 256, loop=100.0, onednn=10.0)
    assert [one.share(each) for each in one.rows] == [pytest.approx(0.5), pytest.approx(0.5)]
    absent = replace(one, roofline=Roofline(int8=None, float32=1e11))
    assert [absent.share(each) for each in absent.rows] == [pytest.approx(0.5), None]


def test_a_draw_is_measured_against_the_fastest_int8_pass_of_any_engine() -> None:
    passes = [
        row("onednn", "pointwise", 20.0),
        row("openvino_int8", "pointwise", 8.0),
        Row("onnxruntime_int8", "pointwise", why="not installed"),
    ]
    one = cell("lenet", "mcd", 256, *passes, loop=1.0, openvino_int8=2.0, onednn=12.0)
    fastest = one.fastest_pointwise()
    assert fastest is not None
    assert fastest.engine == "openvino_int8"
    assert one.draw_over_pass == pytest.approx(1.5)
    assert cell("lenet", "mcd", 256, onednn=12.0).draw_over_pass is None
    assert cell("lenet", "pointwise", 256, onednn=12.0).draw_over_pass is None


def test_a_cell_says_what_is_not_plain_about_it() -> None:
    assert cell("lenet", "mcd", 1, loop=1.0).notes == ["4 of 20 draws timed", "2 × conv exact"]
    absent = Row("bayesian_torch", "mcd", why="it has no masks")
    lines = cell_lines(cell("lenet", "mcd", 1, absent, row("onednn", "pointwise", 0.4), loop=1.0, onednn=0.5))
    assert "4 of 20 draws timed; 2 × conv exact" in lines[1]
    assert "2.00" in next(line for line in lines if line.startswith("  onednn"))
    assert next(line for line in lines if "bayesian" in line).endswith("not run: it has no masks")
    assert lines.index("  a pointwise pass, for comparison:") == len(lines) - 2


def test_aims_are_judged_both_ways() -> None:
    near, far = row("openvino_int8", "pointwise", 10.0), row("openvino_int8", "pointwise", 5.0)
    cells = [
        cell("resnet18-slim", "pointwise", 256, loop=30.0, onednn=10.0),
        cell("resnet18-slim", "sghmc", 256, loop=29.0, onednn=10.0),
        cell("resnet18-slim", "bbb", 256, loop=24.0, onednn=10.0),
        cell("resnet18-slim", "bbb", 1, loop=1.0, onednn=10.0),
        cell("lenet", "mcd", 1, near, onednn=13.0),
        cell("lenet", "mcd", 256, near, onednn=11.9),
        cell("lenet", "mcd", 256, near, onednn=12.1),
        cell("lenet", "bbb", 256, near, onednn=15.9),
        cell("lenet", "sghmc", 256, far, onednn=7.0),
        cell("resnet18-standard", "pointwise", 256, onednn=5_000_000 / 0.61e6),
        cell("resnet18-standard", "pointwise", 256, onednn=5_000_000 / 0.59e6),
    ]
    found = [line.split(":")[0] for line in verdicts(cells)]
    assert found == ["met", "MISSED", "MISSED", "met", "MISSED", "met", "MISSED", "met", "MISSED"]


def test_ways_run_in_turn_until_the_time_is_over() -> None:
    calls: list[str] = []

    def turn(name: str, seconds: list[float]) -> list[float]:
        calls.append(name)
        return seconds

    turns = {"a": lambda: turn("a", [1.0, 2.0]), "b": lambda: turn("b", [])}
    found = interleaved(turns, seconds=0.0, least_rounds=3)
    assert "".join(calls) == "ab" * 3
    assert found == {"a": [1.0, 2.0] * 3, "b": []}
    assert len(interleaved({"a": lambda: burst(lambda: time.sleep(0.02), 0.0)}, seconds=0.1)["a"]) >= 3


def test_a_turn_is_calls_for_some_time_and_at_least_one() -> None:
    assert len(burst(lambda: None, 0.0)) == 1
    found = burst(lambda: time.sleep(0.002), 0.02)
    assert len(found) > 1
    assert min(found) >= 0.002


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
def test_a_cell_times_every_engine_and_the_passes(method: str) -> None:
    subject = make_subject("mlp", method, W8A7, members=2)
    pointwise = make_subject("mlp", "pointwise", W8A7)
    asked = Settings(["loop", "onednn", "frozen"], draws=2, seconds=0.05)
    found = measure("mlp", subject, pointwise, batch=3, settings=asked)
    passes = [] if method == "pointwise" else [("onednn", "pointwise")]
    named = [(one.engine, one.method) for one in found.rows]
    assert named == [(engine, method) for engine in asked.engines] + passes
    timed = {one.engine: one.times is not None for one in found.rows}
    assert timed == {"loop": True, "onednn": True, "frozen": method == "bbb"}
    assert all((one.times is None) == bool(one.why) for one in found.rows)
    assert found.draws == (1 if method == "pointwise" else 2)
    assert found.rows[1].times is not None
    assert found.rows[1].times.passes == 3 * found.draws
    assert found.name == f"mlp/{method}/W8A7/batch3"
    assert ("one draw" in " ".join(found.notes)) == (method == "pointwise")
    assert found.roofline.float32 > 0
    assert all(0 < share < 1.5 for one in found.rows if (share := found.share(one)) is not None)


def test_operations_are_two_for_each_product_of_a_weight() -> None:
    subject = make_subject("mlp", "bbb", W8A7)
    # 13 inputs, three hidden layers of 100 and two heads, whatever the weights are drawn from.
    assert operations(subject.program) == 2 * (13 * 100 + 2 * 100 * 100 + 100 * 2)
    assert operations(make_subject("mlp", "pointwise", W8A7).program) == operations(subject.program)


def test_products_with_padding_are_no_operations() -> None:
    # 5 × 5 taps on 28 × 28 and 14 × 14 pixels with 2 of padding: 6 of the 5 n taps of an axis fall beside.
    first, second = 20 * (5 * 28 - 6) ** 2, 50 * 20 * (5 * 14 - 6) ** 2
    wanted = 2 * (first + second + 2450 * 500 + 500 * 10)
    assert operations(make_subject("lenet", "pointwise", W8A7).program) == wanted


def test_an_engine_of_others_that_fails_is_a_row_and_ours_is_an_error(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    subject = make_subject("mlp", "pointwise", W8A7)

    def fails(*_: object) -> None:
        raise RuntimeError("no such kernel\nat all")

    monkeypatch.setattr(type(ENGINES["loop"]), "write", fails)
    found = measure("mlp", subject, subject, 2, Settings(["loop"], draws=1, seconds=0.0))
    assert [one.why for one in found.rows] == ["RuntimeError: no such kernel"]
    monkeypatch.setattr(type(ENGINES["onednn"]), "write", fails)
    with pytest.raises(RuntimeError, match="no such kernel"):
        measure("mlp", subject, subject, 2, Settings(["onednn"], draws=1, seconds=0.0))


def test_all_cells_come_in_order(tmp_path: Path) -> None:
    asked = Settings(["loop", "onednn"], draws=2, seconds=0.0)
    cells = list(measure_all(["mlp"], ["mcd", "pointwise"], [1, 2], W8A7, asked))
    assert [one.name for one in cells] == [
        *("mlp/mcd/W8A7/batch1", "mlp/mcd/W8A7/batch2"),
        *("mlp/pointwise/W8A7/batch1", "mlp/pointwise/W8A7/batch2"),
    ]
    written = json.loads(json.dumps(document({"threads": 1}, {"draws": 2}, cells, []), allow_nan=False))
    assert [one["name"] for one in written["cells"]] == [one.name for one in cells]
    drawn = draw(cells, tmp_path / "bench.svg").read_text()
    assert drawn.count("µs per draw and image") == len(cells)


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


WORDS = (
    *("--networks", "mlp", "--methods", "bbb", "--batch", "2", "--draws", "2"),
    *("--seconds", "0", "--threads", "1", "--precision", "w4a4"),
)
ROW = {"engine", "title", "method", "numbers", "times", "why", "speed", "share", "file_bytes", "memory"}


def test_the_command_prints_and_writes_its_cells(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file, figure = tmp_path / "bench.json", tmp_path / "bench.png"
    words = [*WORDS, "--engines", "loop,onednn,onnxruntime-int8"]
    assert main(["bench", *words, "--out", str(file), "--figure", str(figure)]) == 0
    printed = capsys.readouterr().out
    assert "mlp, bbb, batch 2, 2 draws" in printed
    assert "not run: its quantiser knows no sampled weights" in printed
    written = json.loads(file.read_text())
    (one,) = written["cells"]
    assert one["name"] == "mlp/bbb/W4A4/batch2"
    assert all(set(each) == ROW for each in one["rows"])
    assert [each["engine"] for each in one["rows"]][:3] == ["loop", "onednn", "onnxruntime_int8"]
    assert all((each["memory"] is None) == (each["times"] is None) for each in one["rows"])
    assert one["roofline"]["float32"] > 0
    assert written["machine"]["processor"]
    assert {(each["method"], each["bits"]) for each in written["sizes"]} == {
        *(("bbb", 8), ("bbb", 4), ("bbb", 3))
    }
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["bench", *words, "--out", str(file)]) == 2
    assert main(["bench", *words, "--figure", str(figure)]) == 2
    assert "exists" in capsys.readouterr().err


def test_a_missing_package_is_a_row(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("qbayes.lab.bench.engines.base.find_spec", lambda package: None)
    assert main(["bench", *WORDS, "--engines", "onednn,bayesian-torch", "--no-size"]) == 0
    assert "bayesian_torch is not installed: pip install" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        *("--networks lenets", "--methods bbb,bbb", "--batch 0", "--precision 8", "--draws 0"),
        *(
            "--engines onedn",
            "--engines loop,loop",
            "--figure bench.txt",
            "--clock sun",
            "--clock cpu --threads 2",
            "--figure /dev/null/bench.svg",
        ),
    ],
)
def test_the_command_refuses_what_it_does_not_know(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", *words.split()]) == 2
    told = capsys.readouterr().err
    assert "must" in told
    assert "do:" in told
    assert ("did you mean 'onednn'" in told) == (words == "--engines onedn")


def test_a_figure_without_matplotlib_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "matplotlib.figure", None)
    assert main(["bench", *WORDS, "--figure", str(tmp_path / "bench.svg")]) == 2
    assert "pip install 'qbayes[bench]'" in capsys.readouterr().err


def test_an_unknown_subject_is_named() -> None:
    with pytest.raises(BadInput, match="lenet"):
        make_subject("lenett", "mcd", W8A7)
    with pytest.raises(BadInput, match="mcd"):
        make_subject("mlp", "mcdd", W8A7)

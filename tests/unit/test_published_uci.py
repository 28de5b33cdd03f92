"""The page on UCI: numbers that are known beforehand, and a rehearsal on the rows of its studies to be."""

import hashlib
import math
import re
import sys
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from planned_rows import candidate_rows, planned_rows
from qbayes.lab.analysis.frame import Frame
from qbayes.lab.analysis.intervals import Estimate
from qbayes.lab.report.export_csv import publish
from report_frames import UCI, frame_of, uci_rows
from study_rows import Made, row

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

import published
import published_uci
from published_numbers import Missing, Rows, Studies
from published_uci_bits import FEW, eight_bits, first_layer, judged
from published_uci_choices import factor_of
from published_uci_sets import FIRST_LAYER, RMSE, Cost, bits_of_weights, cost_of, mean_of

ROOT = Path(__file__).parents[2]
SPLITS = (0, 1, 2)
# of all weights of a made-up network, those of the first layer.
FIRST = 0.9


def splits(method: str, bits: Any, scores: list[float], **columns: Any) -> list[Made]:
    """A split a score, as RMSE, of targets that deviate by 10."""
    more = {"coverage_90": 0.9, "interval_width_90": 3.0, "network": "mlp", "target_deviation": 10.0}
    given = {"task": "uci/boston", "nll": 1.0, "crps": 1.0, **more, **columns}
    return [row(method, bits, fold=fold, rmse=rmse, **given) for fold, rmse in enumerate(scores)]


def rows_of(folder: Path, *rows: list[Made]) -> Rows:
    publish(frame_of([one for some in rows for one in some], name="uci"), folder / "uci.csv")
    return Studies(folder)["uci"]


# ---- numbers


@pytest.mark.parametrize(
    ("ends", "mark"),
    [((0.2, 0.9), "✓"), ((-5, -1), "✓"), ((0.5, 1.5), ""), ((1.1, 9.0), "✗"), ((-3.0, 1.01), "")],
)
def test_marks_say_what_an_interval_excludes(ends: tuple[float, float], mark: str) -> None:
    low, high = ends
    student = 12.7062  # 97.5 % of one degree of freedom
    assert judged(Estimate((low + high) / 2, (high - low) / 2 / student, 1, 2), 1.0) == mark


def test_the_mean_of_sets_has_their_errors_together() -> None:
    """Errors of 3 and 4 make 5, half of it for the mean of two."""
    found = mean_of([Estimate(1.0, 3.0, 19, 20), Estimate(3.0, 4.0, 9, 10)])
    assert (found.value, found.se_runs, found.freedom, found.runs) == (2.0, 2.5, 9, 30)


def test_the_worst_set_stands_beside_the_median_and_the_mean() -> None:
    sets = {
        f"uci/{name}": Estimate(value, 0.0, 1, 2) for name, value in zip("abc", (1.0, 2.0, 9.0), strict=True)
    }
    assert Cost(sets).text(1) == "+2.0 / +4.0 / +9.0"
    assert Cost(sets).worst == (9.0, "uci/c")
    fallen = {**sets, "uci/c": Estimate(-9.0, 0.0, 1, 2)}
    assert Cost(fallen).worst == (2.0, "uci/b")
    assert Cost(fallen, either=True).worst == (-9.0, "uci/c")


def test_a_peer_stands_beside_the_method_that_it_is(tmp_path: Path) -> None:
    """Boston: RMSE 3 against 2.90 of MC dropout; no row of ours is compared with an ensemble."""
    rows = [*splits("mcd", None, [2.5, 3.5]), *splits("mcd", (8, 8), [2.5, 3.5])]
    rows += [*splits("pointwise", None, [2.0, 2.0]), *splits("pointwise", (8, 8), [2.0, 2.0])]
    lines = published_uci.float_table(rows_of(tmp_path, rows))
    assert [line.split(" | ")[0] for line in lines[2:7]] == [
        "| `pointwise`",
        "| `mcd`",
        "| MC dropout, trained to convergence",
        "| deep ensemble of 5",
        "| `mcd` less MC dropout, trained to convergence",
    ]
    # ∓ 0.5 on two splits whose training rows overlap: t · √½ · √(1/2 + 1/9).
    assert "| +0.10 [−6.92, +7.12] / " in lines[6]
    assert " / −1.40" in lines[6]
    assert "best" not in "\n".join(lines)


def test_eight_bits_are_counted(tmp_path: Path) -> None:
    rows = [*splits("mcd", None, [1.0, 2.0]), *splits("mcd", (8, 8), [1.005, 2.0101])]
    rows += [*splits("bbb", None, [1.0, 2.0]), *splits("bbb", (8, 8), [1.2, 2.4001])]
    lines = eight_bits(rows_of(tmp_path, rows))
    assert any(line.startswith("| `mcd` | W8A8 | +0.50 [") and line.endswith("] ✓ |") for line in lines)
    assert any(line.startswith("| `bbb` | W8A8 | +20.00 [") and line.endswith("] ✗ |") for line in lines)
    assert "1 of 2 ✓, 1 ✗." in lines


def test_rows_that_are_not_there_are_named(tmp_path: Path) -> None:
    with pytest.raises(Missing, match=r"uci\.csv"):
        published_uci.TABLES["float"](Studies(tmp_path))


# ---- the rows that the studies will write


def loss_of(bits: str, task: str) -> float:
    """Per cent of RMSE: 1 to 6 from Boston to Yacht, times 8 less the bits of a weight."""
    return (1 + UCI.index(task)) * (8 - int(bits[1]))


def made(row: Mapping[str, Any]) -> dict[str, Any]:
    """Scores without chance: what a row lost is known; a byte is eight bits of one of 1,000 weights."""
    bits, task = str(row["precision"]), str(row["task"])
    lost = 0.0 if bits == "float" else 0.5 if bits == "float-finetuned" else loss_of(bits, task)
    first = FIRST_LAYER in str(row["scheme"])
    if first:
        lost /= 10
    stored = row["weight"] + (8 - row["weight"]) * FIRST * first
    level = (1 + row["fold"]) * (1 + 0.1 * UCI.index(task))
    return {
        "rmse": level * (1 + lost / 100),
        "nll": lost / 100,
        "crps": level * (1 + lost / 100),
        "coverage_90": 0.9,
        "interval_width_90": 3.0,
        "target_deviation": 50.0,
        "test_rows": 51,
        "bytes": round(400 + 1000 * stored / 8),
        "spread/hidden.0": 3.0,
    }


def scored(row: Mapping[str, Any]) -> dict[str, Any]:
    """Held-out scores in one order of the candidates, on split 0 in the other."""
    rank = int(hashlib.sha256(str(row["candidate"]).encode()).hexdigest()[:6], 16) / 1e7
    return {**made(row), "nll": -rank if row["fold"] == 0 else rank}


@pytest.fixture(scope="module")
def rehearsed(tmp_path_factory: pytest.TempPathFactory) -> Studies:
    folder = tmp_path_factory.mktemp("rehearsed")
    for name in ("uci", "uci-large", "uci-ablation"):
        publish(frame_of(planned_rows(name, SPLITS, made), name=name), folder / f"{name}.csv")
    for name in ("uci", "uci-large"):
        held = frame_of(candidate_rows(name, SPLITS, scored), name=name)
        publish(held, folder / f"{name}-candidates.csv")
    (folder / "uci-paper.csv").write_bytes((published.RESULTS / "uci-paper.csv").read_bytes())
    return Studies(folder)


def test_every_planned_run_has_a_row(rehearsed: Studies) -> None:
    assert len(rehearsed["uci"].frame.rows) == 6 * len(SPLITS) * 4 * 29
    assert len(rehearsed["uci-large"].frame.rows) == 6 * len(SPLITS) * 4 * 20
    candidates = Frame.read(rehearsed.path("uci-candidates")).candidates
    assert len(candidates) == 6 * len(SPLITS) * 4 * 8


def test_the_page_comes_out_whole(rehearsed: Studies) -> None:
    """No word says that something was not run; no cell is without a number; a row has as many as its head."""
    text = published.filled("uci", (published.RESULTS / "uci.md").read_text(encoding="utf-8"), rehearsed)
    assert "ot run yet" not in text
    assert "older study" not in text
    assert not re.search(r"\bnan\b", text)
    for name, table in published_uci.TABLES.items():
        lines = [line for line in table(rehearsed) if line.startswith("|")]
        assert len({line.count(" | ") for line in lines}) <= 1, name


def test_the_headline_has_the_true_widths_and_the_control(rehearsed: Studies) -> None:
    """W4A4 loses 4 to 24 % from Boston to Yacht, the control half a per cent everywhere."""
    lines = published_uci.headline(rehearsed["uci"])
    (four,) = [line for line in lines if line.startswith("|  | W4A4 | 900 |")][:1]
    cells = four.strip("| ").split(" | ")
    assert cells[2] == "+14.0"
    assert cells[3].startswith("+14.0 [")
    assert cells[4] == "+24.0 Yacht"
    assert cells[5] == "+0.140 / +0.140 / +0.240"
    assert cells[6:] == ["+0.5 / +0.5 / +0.5", "+0.005 / +0.005 / +0.005"]
    assert "first layer" not in "\n".join(lines)


def test_an_override_stands_with_its_mean_bits_and_bytes(rehearsed: Studies) -> None:
    lines = first_layer(rehearsed["uci"])
    for bits in FEW:
        least = int(bits[1])
        mean = least + (8 - least) * FIRST
        held = bits_of_weights(rehearsed["uci"], "mcd", bits)
        assert held is not None
        assert math.isclose(held, mean, abs_tol=0.01)
        beside = f"| {bits}, first layer W8 | {mean:.1f} | {400 + 1000 * mean / 8:,.0f} |"
        assert sum(beside in line for line in lines) == 4


def test_candidates_are_counted_by_the_splits_that_chose_them(rehearsed: Studies) -> None:
    """On six sets one of three splits takes one candidate of a method, the others take another."""
    lines = published_uci.TABLES["candidates"](rehearsed)
    counts = [line.strip("| ").split(" | ")[-2] for line in lines if line.startswith("|")][2:]
    assert Counter(counts) == {"12 of 18": 4, "6 of 18": 4, "0 of 18": 24}


@pytest.mark.parametrize(("method", "recipes"), [("mcd", 24), ("sghmc", 24), ("bbb", 22)])
def test_the_factors_of_the_ablation_are_told_apart(rehearsed: Studies, method: str, recipes: int) -> None:
    """Each precision and fine-tuning of the file is a row of its own, of both widths."""
    rows = rehearsed["uci-ablation"].done(task="uci/energy", fold=0, method=method)
    rows = [one for one in rows if one["precision"] != "float"]
    factors = {factor_of(one) for one in rows}
    assert len(rows) == 2 * len(factors) == 2 * recipes
    assert "scheme the paper's; fine-tuning the paper's" in factors
    assert "scheme ours; fine-tuning ours" in factors


def test_rows_of_another_study_say_so(tmp_path: Path) -> None:
    rows = uci_rows(folds=2, precisions=[(8, 8), (4, 4)])
    text = "\n".join(published_uci.origin(rows_of(tmp_path, rows)))
    assert "older study" in text
    assert "not run yet" in text


def test_what_is_lost_is_the_same_by_the_rows_and_by_the_table(rehearsed: Studies) -> None:
    ours = rehearsed["uci"]
    pairs = {task: ours.pairs(task=task, method="bbb", precision="W2A2") for task in ours.tasks()}
    found = cost_of(pairs, RMSE).sets
    assert {task: one.value for task, one in found.items()} == pytest.approx(
        {task: loss_of("W2A2", task) for task in UCI}
    )


# ---- words elsewhere


@pytest.mark.parametrize("page", ["docs/how-to-choose.md"])
def test_words_on_regression_are_those_of_the_rows(page: str) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    held = Studies(published.RESULTS)["uci"]
    assert published_uci.WORDS[page](held) in text

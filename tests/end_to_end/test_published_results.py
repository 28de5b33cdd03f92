"""The tables of the results page say what the published rows beside it say."""

import csv
import re
import runpy
import statistics
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = (RESULTS / "float.md").read_text(encoding="utf-8")


INTEGERS = (RESULTS / "integers.md").read_text(encoding="utf-8")
TABLES = runpy.run_path(str(RESULTS.parents[1] / "benchmarks" / "scores" / "integer_tables.py"))


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("row", rows("images_float.csv"), ids=lambda row: f"{row['task']} {row['recipe']}")
def test_image_line(row: dict[str, str]) -> None:
    error, ece, nll = 100 * float(row["error"]), 100 * float(row["ece"]), float(row["nll"])
    numbers = f"| {error:.2f} % | {nll:.{4 if row['task'] == 'mnist' else 3}f} |"
    (line,) = [line for line in PAGE.splitlines() if numbers in line]
    assert line.startswith(f"| `{re.split('[, ]', row['recipe'])[0]}`")
    assert f"| {row['epochs']}" in line
    assert f"| {ece:.2f} % |" in line or f"| {ece:.1f} % |" in line
    if row["auroc"]:
        assert f"| {float(row['auroc']):.3f} |" in line


@pytest.mark.parametrize("part", sorted(TABLES["PARTS"]))
def test_integer_tables_are_those_of_the_rows(part: str) -> None:
    lines = list(TABLES["PARTS"][part]())
    assert len(lines) > 2
    assert "\n".join(lines[-3:]) in INTEGERS
    assert [line for line in lines if line not in INTEGERS] == []


@pytest.mark.parametrize("method", ["pointwise", "mcd", "bbb", "sghmc"])
def test_the_readme_has_the_fine_tuned_rows(method: str) -> None:
    held = TABLES["Paired"](rows("integers_mnist.csv"), "float", ("method", "seed"))
    numbers = (("error", 100, 2), ("ece", 100, 2))
    cells = (
        held.cells(numbers, method=method, precision=bits, epochs="10").replace(" | ", " / ")
        for bits in TABLES["BITS"]
    )
    readme = (RESULTS.parents[1] / "README.md").read_text(encoding="utf-8")
    assert f"| `{method}` | " + " | ".join(cells) + " |" in readme


@pytest.mark.parametrize(
    ("bits", "error", "ece"), [("W8A8", 0.15, 0.5), ("W8A7", 0.15, 0.5), ("W4A4", 0.3, 1.0)]
)
def test_mnist_on_integers_costs_no_more_than_promised(bits: str, error: float, ece: float) -> None:
    """Mean of the seeds, paired, in points; by calibration alone too."""
    table = rows("integers_mnist.csv")
    floats = {(r["method"], r["seed"]): r for r in table if r["precision"] == "float"}
    for method in ("pointwise", "mcd", "bbb", "sghmc"):
        for epochs in ("0", "10"):
            some = [r for r in table if (r["method"], r["precision"], r["epochs"]) == (method, bits, epochs)]
            assert len(some) == 3
            for name, most in (("error", error), ("ece", ece)):
                lost = [100 * (float(r[name]) - float(floats[method, r["seed"]][name])) for r in some]
                assert statistics.mean(lost) <= most


def rate_nll(bits: str, rate: str, steps: str) -> str:
    """The mean over methods and seeds on the validation rows."""
    table = rows("integers_rate.csv")
    some = [
        float(row["nll"]) for row in table if (row["bits"], row["rate"], row["steps"]) == (bits, rate, steps)
    ]
    assert len(some) == 8
    return f"{statistics.mean(some):.3f}"


def test_the_rate_was_chosen_by_the_published_rows() -> None:
    page = (RESULTS.parent / "how-to-choose.md").read_text(encoding="utf-8")
    for bits in ("4", "2"):
        numbers = ", ".join(rate_nll(bits, rate, "200") for rate in ("0.003", "0.01", "0.03"))
        assert f"{numbers} at W{bits}A{bits}" in page
    assert f"(NLL {rate_nll('2', '0.01', '200')} to {rate_nll('2', '0.01', '400')})" in page

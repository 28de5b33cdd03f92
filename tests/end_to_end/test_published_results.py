"""The tables of the results page say what the published rows beside it say."""

import csv
import re
import statistics
from pathlib import Path

import pytest

RESULTS = Path(__file__).parents[2] / "docs" / "results"
PAGE = (RESULTS / "float.md").read_text(encoding="utf-8")


def rows(name: str) -> list[dict[str, str]]:
    with (RESULTS / name).open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def uci_cell(method: str, name: str) -> str:
    """``RMSE ± s.e. / NLL ± s.e.`` over the splits."""
    chosen = [row for row in rows("uci_float.csv") if (row["method"], row["set"]) == (method, name)]
    assert sorted(int(row["split"]) for row in chosen) == list(range(20))
    parts = []
    for metric in ("rmse", "nll"):
        values = [float(row[metric]) for row in chosen]
        parts.append(f"{statistics.mean(values):.2f} ± {statistics.stdev(values) / 20**0.5:.2f}")
    return " / ".join(parts)


@pytest.mark.parametrize("method", ["mcd", "bbb"])
def test_uci_line(method: str) -> None:
    sets = ("boston", "concrete", "energy", "power", "wine", "yacht")
    expected = f"| `{method}` | " + " | ".join(uci_cell(method, name) for name in sets) + " |"
    assert expected in PAGE


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

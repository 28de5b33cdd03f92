"""The choices on digits: each option of each method on a line of its own, from rows that are known."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "scores"))

from published_digits import digits
from published_numbers import Studies

from qbayes.lab.report.export_csv import publish
from report_frames import frame_of
from study_rows import row


def test_options_are_told_apart_and_in_their_order(tmp_path: Path) -> None:
    """Two seeds of each: errors of 1 and 3 per cent are 2 ± 1.41."""
    scores = {"nll": 0.1, "ece": 0.02, "rotation/3/ece": 0.5, "confusion/auroc": 0.99}
    scores["confusion/auroc_mutual_information"] = 0.9
    rows = [
        row(method, seed=seed, task="digits", error=0.01 + 0.02 * seed, **scores, **options)
        for method, options in (
            ("pointwise", {}),
            ("mcd", {"axis:method.rate": 0.4}),
            ("mcd", {"axis:method.rate": 0.05}),
            ("bbb", {"axis:method.prior_sigma": 0.1, "axis:method.kl_weight": 1.0}),
        )
        for seed in range(2)
    ]
    publish(frame_of(rows, name="digits-choices", planned=9), tmp_path / "digits-choices.csv")
    lines = digits(Studies(tmp_path))
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines if line.startswith("| ")]
    assert [line[:3] for line in cells[2:]] == [
        ["`pointwise`", "", "2.00 ± 1.41"],
        ["`mcd`", "rate 0.05", "2.00 ± 1.41"],
        ["", "rate 0.4", "2.00 ± 1.41"],
        ["`bbb`", "prior σ 0.1, KL weight 1", "2.00 ± 1.41"],
    ]
    assert cells[2][-1] == "–", "one network has no mutual information"
    assert lines[-1].endswith("1 runs are left.")

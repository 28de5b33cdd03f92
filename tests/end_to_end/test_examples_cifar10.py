"""The program of ResNet-8 in ``examples``: small, sound, and it says what its page says."""

import re
from pathlib import Path

import pytest

import needs
import qbayes as qb
from end_to_end.conftest import Cli

FOLDER = Path(__file__).parents[2] / "examples" / "cifar10"
PROGRAM = FOLDER / "resnet8-mcd-w4a4.qbayes"
ROW = re.compile(r"\| `(\w+\.png)` \| (\w+) \| ([\d.]+) \| ([\d.]+) \| ([\d.]+) \|")
pytestmark = needs.unless(FOLDER.is_dir(), needs.EXAMPLES)


def test_its_page_says_what_it_answers(cli: Cli) -> None:
    rows = ROW.findall((FOLDER / "README.md").read_text(encoding="utf-8"))
    assert [row[0] for row in rows] == ["cat.png", "coffee.png"]
    for name, predicted, *numbers in rows:
        told = cli("predict", PROGRAM, FOLDER / name, "--backend", "reference", "--json")
        (answer,) = told.json["answers"]
        assert answer["predicted"] == predicted
        found = [answer[key] for key in ("confidence", "entropy", "mutual_information")]
        assert found == pytest.approx([float(number) for number in numbers], rel=1e-3)


def test_it_is_small_and_its_weights_have_four_bits() -> None:
    assert PROGRAM.stat().st_size < 50_000
    (member,) = qb.Program.open(PROGRAM).members
    weights = [held["weight"] for held in member.constants.values() if "weight" in held]
    assert len(weights) == 10
    assert all(codes.abs().max() <= 7 for codes in weights)

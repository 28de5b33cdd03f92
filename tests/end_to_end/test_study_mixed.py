"""A study in which layers have bits of their own, at the cost of equal ones."""

from pathlib import Path

import qbayes as qb
from qbayes.integer.structure.cost import cost
from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.stacks import stacks_of
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.store.store import Store
from qbayes.quant.precision import Precision

STUDY = """
[run]
task = {name = "diabetes", split = 0}
network = {name = "mlp", hidden = [20, 20], noise = "constant"}
method = "pointwise"
training = {epochs = 20, batch_size = 64}
quantize = {epochs = 1, least_steps = 0}
evaluate = {draws = 3}

[axes]
task = [{name = "diabetes", split = [0, 1, 2]}]
method = ["pointwise", {name = "mcd", rate = 0.1}]
precision = ["float", "W4A4"]
quantize = [{}, {mixed = "bytes"}, {mixed = "bit_operations"}]
"""


def test_bits_by_layer_are_part_of_a_study(tmp_path: Path) -> None:
    study = qb.Study.from_toml(STUDY, "mixed")
    done = qb.run_study(study, tmp_path / "store", device="cpu", workers=1)
    assert (done.done, done.failed) == (24, 0)
    rows = qb.results(tmp_path / "store").to_dict("records")
    quantised = [row for row in rows if row["precision"] == "W4A4"]
    assert {row["scheme"] for row in quantised} == {
        "default",
        "default, mixed=bytes",
        "default, mixed=bit_operations",
    }
    for row in quantised:
        (equal,) = [
            other for other in quantised if other["float"] == row["float"] and other["scheme"] == "default"
        ]
        if row["scheme"] == "default, mixed=bytes":
            assert 0 < row["bytes"] <= equal["bytes"]
        if row["scheme"] == "default, mixed=bit_operations":
            assert 0 < row["bit_operations"] <= equal["bit_operations"]
    store = Store(tmp_path / "store")
    programs = [qb.Program.open(path) for path in store.folder.glob("program/*/program.qbayes")]
    own = [program for program in programs if Precision.from_json(program.precision).overrides]
    assert len(own) == 12
    # layers do have different bits, not equal ones by another name.
    assert any(len({op.weight_bits for op in cost(program).ops if op.weight_bits}) > 1 for program in own)


def test_they_are_not_stacked_and_have_keys_of_their_own() -> None:
    tasks = Tasks(None)
    plan = make_plan(qb.Study.from_toml(STUDY, "mixed"), tasks)
    stacks = stacks_of(plan, tasks)
    for run in plan.runs:
        if run.keys.quantised is not None:
            assert (run.keys.quantised in stacks) == ("mixed" not in run.point.run["quantize"])
    assert len({run.keys.quantised for run in plan.runs}) == 1 + 2 * 3 * 3

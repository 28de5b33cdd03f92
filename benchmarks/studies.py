"""What studies cost besides their work: planning, reporting, and what stacking saves.

    python benchmarks/studies.py plan  [--runs 100000]
    python benchmarks/studies.py stack --data DIR [--sets boston yacht] [--folds 10] [--methods mcd bbb]

``plan`` plans a study of many runs on digits. ``stack`` runs a fraction of ``uci-paper`` on this machine,
stacked and one by one, each in a store of its own, and gives the ratios of the times that float training and
quantisation took, and of the whole.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from qbayes.lab.study.plan.plan import make_plan
from qbayes.lab.study.plan.tasks import Tasks
from qbayes.lab.study.run import run_study
from qbayes.lab.study.spec.study import Study, study_file
from qbayes.lab.study.store.keys import STAGES
from qbayes.lab.study.store.store import Store


def plan(runs: int) -> dict[str, Any]:
    bits = [f"W{w}A{a}" for w in range(2, 9) for a in range(2, 9)]
    draws = list(range(1, 52))
    content = {
        "run": {"task": "digits", "network": "lenet", "method": "mcd"},
        "axes": {
            "seed": list(range(-(-runs // (len(bits) * len(draws))))),
            "precision": bits,
            "evaluate": {"draws": draws},
        },
    }
    begun = time.perf_counter()
    found = make_plan(Study.from_content(content), Tasks(None))
    planned = time.perf_counter()
    jobs = found.jobs()
    return {
        "runs": len(found.runs),
        "plan_seconds": round(planned - begun, 2),
        "jobs": len(jobs),
        "job_seconds": round(time.perf_counter() - planned, 2),
    }


def part(sets: list[str], folds: int, methods: list[str], seeds: int) -> Study:
    """A fraction of uci-paper: some of its sets, folds, methods and seeds, all of its precisions."""
    content = json.loads(json.dumps(Study.read(study_file("uci-paper")).source))
    content["study"]["name"] = "uci-part"
    content["axes"] |= {
        "seed": list(range(seeds)),
        "task": [
            {"name": [f"uci/{name}" for name in sets], "split": list(range(folds)), "protocol": "paper"}
        ],
        "method": [{"name": methods, "preset": "paper"}],
    }
    return Study.from_content(content)


def stack(study: Study, data: Path, device: str) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    ended: dict[str, int] = {}
    for name, stacked in (("one by one", False), ("stacked", True)):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_study(study, folder, data_dir=data, device=device, stack=stacked)
            for stage in STAGES:
                records = Store(folder).records(stage).values()
                seconds[f"{stage}, {name}"] = sum(record["seconds"] for record in records)
            seconds[f"whole, {name}"] = outcome.seconds
            ended = {"runs": outcome.planned, "failed": outcome.failed}
    ratios = {
        what: seconds[f"{what}, one by one"] / seconds[f"{what}, stacked"]
        for what in ("float", "quantised", "whole")
    }
    return {
        **ended,
        **{what: round(value, 1) for what, value in seconds.items()},
        **{f"ratio, {what}": round(value, 2) for what, value in ratios.items()},
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("plan", "stack"), nargs="?", default="plan")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["boston", "yacht"])
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["pointwise", "mcd", "bbb"])
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if asked.what == "plan":
        print(json.dumps(plan(asked.runs)))
    else:
        study = part(asked.sets, asked.folds, asked.methods, asked.seeds)
        print(json.dumps(stack(study, asked.data, asked.device)))


if __name__ == "__main__":
    main()

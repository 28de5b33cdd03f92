"""What studies cost besides their work: planning, reporting, and what stacking saves.

    python benchmarks/studies.py plan  [--runs 100000]
    python benchmarks/studies.py stack --data DIR [--sets boston yacht] [--folds 10] [--methods mcd bbb]

``plan`` plans a study of many runs on digits. ``stack`` trains the float posteriors of a fraction of
``uci-paper`` on this machine, stacked and one by one, each in a store of its own, and gives the ratio of the
times that the trainings took.
"""

import argparse
import json
import tempfile
import time
from pathlib import Path
from typing import Any

from qbayes.study.plan import make_plan
from qbayes.study.run import run_study
from qbayes.study.shipped import study_file
from qbayes.study.spec import Study
from qbayes.study.stages import Tasks
from qbayes.study.store import Store


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


def part(sets: list[str], folds: int, methods: list[str]) -> Study:
    """A fraction of the float runs of uci-paper."""
    content = json.loads(json.dumps(Study.read(study_file("uci-paper")).source))
    content["study"]["name"] = "uci-part"
    content["axes"] = {
        "task": [
            {"name": [f"uci/{name}" for name in sets], "split": list(range(folds)), "protocol": "paper"}
        ],
        "method": [{"name": methods, "preset": "paper"}],
        "precision": ["float"],
    }
    return Study.from_content(content)


def stack(study: Study, data: Path, device: str) -> dict[str, Any]:
    seconds: dict[str, float] = {}
    for name, stacked in (("one by one", False), ("stacked", True)):
        with tempfile.TemporaryDirectory() as folder:
            outcome = run_study(study, folder, data_dir=data, device=device, stack=stacked)
            records = Store(folder).records("float").values()
            seconds[name] = sum(record["seconds"] for record in records)
            seconds[f"{name}, wall"] = outcome.seconds
    ratio = seconds["one by one"] / seconds["stacked"]
    return {
        "posteriors": len(records),
        **{k: round(v, 1) for k, v in seconds.items()},
        "ratio": round(ratio, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("what", choices=("plan", "stack"), nargs="?", default="plan")
    parser.add_argument("--runs", type=int, default=100_000)
    parser.add_argument("--data", type=Path)
    parser.add_argument("--sets", nargs="+", default=["boston", "yacht"])
    parser.add_argument("--folds", type=int, default=10)
    parser.add_argument("--methods", nargs="+", default=["pointwise", "mcd", "bbb"])
    parser.add_argument("--device", default="cpu")
    asked = parser.parse_args()
    if asked.what == "plan":
        print(json.dumps(plan(asked.runs)))
    else:
        study = part(asked.sets, asked.folds, asked.methods)
        print(json.dumps(stack(study, asked.data, asked.device)))


if __name__ == "__main__":
    main()

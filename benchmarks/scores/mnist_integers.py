"""What quantisation costs on MNIST: LeNet, four methods, float against integer programs.

    python benchmarks/scores/mnist_integers.py --data DIR --out FOLDER --method mcd --seed 0 \
        --precision float,W8A8,W8A7,W4A4,W3A3,W2A2

Trains the float posterior of a method and seed with its default recipe (or reads it from FOLDER, if it is
there), then calibrates and fine-tunes it at each precision, lowers it, and scores the program on the
reference backend with 20 draws. Rows are appended to FOLDER/rows-METHOD-SEED.csv; what is there already is
not run again. A precision may have a suffix: ``W8A4-mask`` uses the paper's mask product, ``W8A4-paper`` the
paper's whole scheme and budget.
"""

import argparse
import csv
import dataclasses
import time
from pathlib import Path

import torch

import qbayes as qb

EPOCHS = (0, 10)
SCORES = ("error", "nll", "ece", "ece_per_batch", "brier", "entropy", "mutual_information")
FIELDS = ("method", "seed", "precision", "epochs", *SCORES, "seconds", "device")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--data", required=True, type=Path)
    parser.add_argument("--out", required=True, type=Path)
    parser.add_argument("--method", required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--precision", default="float,W8A8,W8A7,W4A4,W3A3,W2A2")
    parser.add_argument("--batch", type=int, default=qb.qat_budget().batch_size)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--compile", action="store_true", help="compile the steps on CUDA")
    asked = parser.parse_args()
    # TF32 products are what a user of this machine would train with; programs are exact in any case.
    torch.set_float32_matmul_precision("high")
    task = qb.load_task("mnist", asked.data, confusion=False)
    run = Run(asked, task)
    for name in asked.precision.split(","):
        for epochs in EPOCHS if name != "float" else (0,):
            run.score(name, epochs)


class Run:
    """One method and seed: its float posterior, and the rows made from it."""

    def __init__(self, asked: argparse.Namespace, task: qb.Task) -> None:
        self.asked, self.task = asked, task
        self.rows = asked.out / f"rows-{asked.method}-{asked.seed}.csv"
        asked.out.mkdir(parents=True, exist_ok=True)
        self.posterior = self._float()

    def _float(self) -> qb.NetworkPosterior:
        folder = self.asked.out / f"{self.asked.method}{self.asked.seed}"
        if not (folder / "posterior.json").exists():
            method, budget = qb.recipe(self.asked.method, self.task)
            posterior = qb.fit(
                lambda: qb.network("lenet", self.task, style="relu"),
                self.task,
                method,
                dataclasses.replace(budget, compile=self.asked.compile),
                seed=self.asked.seed,
                device=self.asked.device,
                progress=False,
            )
            qb.save_posterior(posterior, folder)
        return qb.load_posterior(folder).to(self.asked.device)

    def score(self, name: str, epochs: int) -> None:
        if (name, epochs) in self._done():
            return
        begun = time.monotonic()
        answering = self.posterior if name == "float" else self._program(name, epochs)
        clean = qb.evaluate(answering, self.task, shifts=False, confusion=False).clean
        row = {
            "method": self.asked.method,
            "seed": self.asked.seed,
            "precision": name,
            "epochs": epochs,
            **{score: f"{clean[score]:.6g}" for score in SCORES},
            "seconds": f"{time.monotonic() - begun:.1f}",
            "device": self.asked.device,
        }
        self._append(row)
        print(", ".join(f"{key} {row[key]}" for key in FIELDS), flush=True)

    def _program(self, name: str, epochs: int) -> qb.ProgramPosterior:
        bits, _, scheme = name.partition("-")
        weight, activation = int(bits[1]), int(bits[3])
        precision = qb.Precision(weight=weight, activation=activation)
        budget = qb.qat_budget(epochs=epochs, batch_size=self.asked.batch)
        if scheme == "mask":
            precision = dataclasses.replace(precision, mask="product")
        elif scheme == "paper":
            precision = qb.Precision.preset("paper", weight=weight, activation=activation)
            budget = qb.qat_budget("paper", epochs=epochs)
        quantized = qb.quantize(
            self.posterior,
            self.task,
            precision,
            dataclasses.replace(budget, compile=self.asked.compile),
            seed=self.asked.seed,
            device=self.asked.device,
            checkpoint=self.asked.out
            / "checkpoints"
            / f"{self.asked.method}{self.asked.seed}-{name}-{epochs}",
            resume=True,
            progress=False,
        )
        return qb.load(qb.lower(quantized), backend="reference", device=self.asked.device)

    def _done(self) -> set[tuple[str, int]]:
        if not self.rows.exists():
            return set()
        with self.rows.open(newline="") as file:
            return {(row["precision"], int(row["epochs"])) for row in csv.DictReader(file)}

    def _append(self, row: dict[str, object]) -> None:
        new = not self.rows.exists()
        with self.rows.open("a", newline="") as file:
            writer = csv.DictWriter(file, FIELDS)
            if new:
                writer.writeheader()
            writer.writerow(row)


if __name__ == "__main__":
    main()

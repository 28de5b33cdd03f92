"""``qbayes bench``: how fast integers are beside float on this machine, and how small their files."""

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qbayes.cli.console import note, print_json
from qbayes.cli.inputs import check_new_file
from qbayes.cli.options import AsJson, Draws, OverwriteFile
from qbayes.errors import BadInput, nearest

if TYPE_CHECKING:
    from collections.abc import Sequence

    from qbayes import Precision
    from qbayes.bench.size import Size
    from qbayes.bench.speed import Cell

_NETWORKS = "mlp,lenet,resnet18-slim,resnet18-standard"
_METHODS = "pointwise,mcd,bbb,sghmc"


def bench(
    networks: Annotated[str, typer.Option(help="Networks, separated by commas.")] = _NETWORKS,
    methods: Annotated[str, typer.Option(help="Methods, separated by commas.")] = _METHODS,
    batch: Annotated[str, typer.Option(help="Batch sizes, separated by commas.")] = "1,256",
    draws: Draws = 20,
    precision: Annotated[str, typer.Option(help="Bits of weights and activations.")] = "W8A8",
    threads: Annotated[int, typer.Option(min=1, help="Threads of torch.")] = 2,
    seconds: Annotated[float, typer.Option(min=0.0, help="Time for each cell after its warm-up.")] = 3.0,
    size: Annotated[bool, typer.Option("--size/--no-size", help="Measure files too.")] = True,
    out_file: Annotated[
        Path | None, typer.Option("--out", help="JSON file, rewritten after each cell.")
    ] = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Time integers beside float, and weigh their files, with random weights.

    For each network, method and batch size: a plain Python loop of float forward passes, float through
    predict, and integers on the backend onednn, all in turn in one run; microseconds per draw and image of
    the fastest calls. Cells are printed as they finish.

    \b
    Examples:
      qbayes bench
      qbayes bench --networks lenet --methods bbb --batch 1 --precision W8A7
    """
    import torch

    chosen = _names("network", networks, _NETWORKS), _names("method", methods, _METHODS)
    batches, bits = _batches(batch), _precision(precision)
    if draws < 1:
        raise BadInput("there must be at least one draw", f"{draws}", "use --draws 20")
    if out_file is not None:
        check_new_file(out_file, (".json",), overwrite=overwrite)
    torch.set_num_threads(threads)
    settings = {
        "networks": chosen[0],
        "methods": chosen[1],
        "batch": batches,
        "draws": draws,
        "precision": bits.label,
        "threads": threads,
        "seconds": seconds,
    }
    found = _Bench(settings, out_file, quiet=as_json)
    found.speed(chosen[0], chosen[1], batches, bits, draws, seconds)
    if size:
        found.sizes(chosen[0], chosen[1])
    if as_json:
        print_json(found.document())


class _Bench:
    """Collects what is measured, prints it line by line and keeps the file up to date."""

    def __init__(self, settings: dict[str, Any], out_file: Path | None, *, quiet: bool) -> None:
        from qbayes.bench.speed import machine

        self.settings, self.out_file, self.quiet = settings, out_file, quiet
        self.machine = machine()
        self.cells: list[Cell] = []
        self.files: list[Size] = []

    def speed(
        self,
        networks: "Sequence[str]",
        methods: "Sequence[str]",
        batches: "Sequence[int]",
        precision: "Precision",
        draws: int,
        seconds: float,
    ) -> None:
        from qbayes.bench import report
        from qbayes.bench.speed import measure_all

        if self.machine["saturates"]:
            note("8 × 8-bit products saturate on this processor: layers at W8A8 take longer here (try W8A7)")
        self._print(*report.speed_head(precision.label, self.settings["threads"]))
        for cell in measure_all(networks, methods, batches, precision, draws, seconds):
            self.cells.append(cell)
            self._print(report.speed_line(cell))
            self._write()
        self._print("", *report.verdicts(self.cells))

    def sizes(self, networks: "Sequence[str]", methods: "Sequence[str]") -> None:
        """Point weights and Gaussian ones; the other methods' files hold the same codes a member."""
        from qbayes.bench import report
        from qbayes.bench.size import BITS, measure_size

        self._print(*report.size_head())
        kinds = ["bbb"] if list(methods) == ["bbb"] else ["pointwise", *(["bbb"] if "bbb" in methods else [])]
        for network in networks:
            for kind in kinds:
                for bits in BITS:
                    self.files.append(measure_size(network, kind, bits))
                    self._print(report.size_line(self.files[-1]))
                    self._write()

    def document(self) -> dict[str, Any]:
        from qbayes.bench.report import document

        return document(self.machine, self.settings, self.cells, self.files)

    def _print(self, *lines: str) -> None:
        if not self.quiet:
            for line in lines:
                print(line, flush=True)

    def _write(self) -> None:
        if self.out_file is not None:
            self.out_file.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")


def _names(what: str, text: str, known: str) -> list[str]:
    names = [name.strip() for name in text.split(",")]
    wrong = [name for name in names if name not in known.split(",")]
    if wrong or len(set(names)) < len(names):
        got = f"'{wrong[0]}'" if wrong else f"'{text}' names one twice"
        do = nearest(wrong[0], known.split(",")) if wrong else "name each once"
        raise BadInput(f"the benchmark must know each {what}, one of {known.replace(',', ', ')}", got, do)
    return names


def _batches(text: str) -> list[int]:
    sizes = [int(part) if part.strip().isdecimal() else 0 for part in text.split(",")]
    if min(sizes) < 1:
        raise BadInput("batch sizes must be whole numbers of at least 1", f"'{text}'", "use --batch 1,256")
    return sizes


def _precision(text: str) -> "Precision":
    from qbayes.quant.precision import Precision

    bits = re.fullmatch(r"[Ww](\d+)[Aa](\d+)", text)
    if bits is None:
        raise BadInput("the precision must name bits of weights and activations", f"'{text}'", "use W8A8")
    return Precision(weight=int(bits[1]), activation=int(bits[2]))

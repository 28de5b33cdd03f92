"""``qbayes bench``: engines beside each other on this machine: how fast, how large, how near to its peak."""

import itertools
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from qbayes.cli.console import check_choice, note, print_json
from qbayes.cli.inputs import check_new_file
from qbayes.cli.options import AsJson, Draws, OverwriteFile
from qbayes.errors import BadInput, nearest

if TYPE_CHECKING:
    from qbayes import Precision
    from qbayes.lab.bench.measure import Size
    from qbayes.lab.bench.result import Cell

_NETWORKS = "mlp,lenet,resnet18-slim,resnet18-standard"
_KNOWN_NETWORKS = "mlp,lenet,resnet8,resnet18-slim,resnet18-standard"
_METHODS = "pointwise,mcd,bbb,sghmc"


def bench(
    networks: Annotated[str, Option(help="Networks, separated by commas.")] = _NETWORKS,
    methods: Annotated[str, Option(help="Methods, separated by commas.")] = _METHODS,
    batch: Annotated[str, Option(help="Batch sizes, separated by commas.")] = "1,256",
    engines: Annotated[
        str, Option(help="Engines, separated by commas; 'default' or 'all' ('qbayes list engines').")
    ] = "default",
    draws: Draws = 20,
    precision: Annotated[str, Option(help="Bits of weights and activations.")] = "W8A8",
    threads: Annotated[int, Option(min=1, help="Threads of every engine.")] = 2,
    seconds: Annotated[float, Option(min=0.0, help="Time for each cell after its warm-up.")] = 3.0,
    clock: Annotated[
        str, Option(help="wall, or cpu: time given to one thread, for machines that are never idle.")
    ] = "wall",
    size: Annotated[bool, Option(help="Measure files too.")] = True,
    out_file: Annotated[Path | None, Option("--out", help="JSON file, rewritten after each cell.")] = None,
    figure: Annotated[
        Path | None, Option(help="Bars of every cell, .svg, .png or .pdf, redrawn after each.")
    ] = None,
    overwrite: OverwriteFile = False,
    as_json: AsJson = False,
) -> None:
    """Compare engines on this machine, side by side in one run: time, memory and files, with random weights.

    For each network, method and batch size every engine runs in turn, float and int8, those of others and
    ours, each in its own process; times are those of the fastest calls. The share of this processor's peak is
    that of a large matrix product in the same run. An engine that is not installed, or cannot run a method,
    is a line that says so. Cells are printed as they finish.

    \b
    Examples:
      qbayes bench --networks lenet --methods mcd
      qbayes bench --networks resnet18-slim --methods bbb --engines all --figure bench.svg
      qbayes bench --engines loop,onednn --precision W8A7
    """
    import torch

    bits = _precision(precision)
    settings = {
        "networks": _names("network", networks, _KNOWN_NETWORKS),
        "methods": _names("method", methods, _METHODS),
        "batch": _batches(batch),
        "engines": _engines(engines),
        "draws": draws,
        "precision": bits.label,
        "threads": threads,
        "seconds": seconds,
        "clock": clock,
    }
    if draws < 1:
        raise BadInput("there must be at least one draw", f"{draws}", "use --draws 20")
    _check_files(out_file, figure, overwrite=overwrite)
    _check_clock(clock, threads)
    torch.set_num_threads(threads)
    found = _Bench(settings, out_file, figure, quiet=as_json)
    found.speed(bits)
    if size:
        found.sizes()
    if as_json:
        print_json(found.document())


class _Bench:
    """Collects what is measured, prints it cell by cell and keeps the files up to date."""

    def __init__(
        self, settings: dict[str, Any], out_file: Path | None, figure: Path | None, *, quiet: bool
    ) -> None:
        from qbayes.lab.bench.speed import machine

        self.settings, self.out_file, self.figure, self.quiet = settings, out_file, figure, quiet
        self.machine = machine()
        self.cells: list[Cell] = []
        self.files: list[Size] = []

    def speed(self, precision: "Precision") -> None:
        from qbayes.lab.bench import report
        from qbayes.lab.bench.speed import Settings, measure_all

        settings = self.settings
        if self.machine["saturates"]:
            note("8 × 8-bit products saturate on this processor: layers at W8A8 take longer here (try W8A7)")
        self._print(*report.speed_head(precision.label, settings["threads"], settings["clock"]))
        each = Settings(**{name: settings[name] for name in ("engines", "draws", "seconds", "clock")})
        networks, methods, batches = (settings[name] for name in ("networks", "methods", "batch"))
        for cell in measure_all(networks, methods, batches, precision, each):
            self.cells.append(cell)
            self._print(*report.cell_lines(cell))
            self._write()
        self._print("", *report.verdicts(self.cells))

    def sizes(self) -> None:
        """Point weights and Gaussian ones; the other methods' files hold the same codes a member."""
        from qbayes.lab.bench import report
        from qbayes.lab.bench.measure import BITS, measure_size

        self._print(*report.size_head())
        methods = self.settings["methods"]
        kinds = ["bbb"] if methods == ["bbb"] else ["pointwise", *(["bbb"] if "bbb" in methods else [])]
        for network, kind, bits in itertools.product(self.settings["networks"], kinds, BITS):
            self.files.append(measure_size(network, kind, bits))
            self._print(report.size_line(self.files[-1]))
            self._write()

    def document(self) -> dict[str, Any]:
        from qbayes.lab.bench.report import document

        return document(self.machine, self.settings, self.cells, self.files)

    def _print(self, *lines: str) -> None:
        if not self.quiet:
            for line in lines:
                print(line, flush=True)

    def _write(self) -> None:
        if self.out_file is not None:
            self.out_file.write_text(json.dumps(self.document(), indent=1) + "\n", encoding="utf-8")
        if self.figure is not None:
            from qbayes.lab.bench.figure import draw

            draw(self.cells, self.figure)


def _engines(text: str) -> list[str]:
    from qbayes.lab.bench.engines.base import ENGINES, all_engines, default_engines

    if text in ("all", "default"):
        return all_engines() if text == "all" else default_engines()
    names = [name.strip().replace("-", "_") for name in text.split(",")]
    for name in names:
        ENGINES[name]
    if len(set(names)) < len(names):
        raise BadInput("each engine must be named once", f"'{text}' names one twice", "name each once")
    return names


def _check_files(out_file: Path | None, figure: Path | None, *, overwrite: bool) -> None:
    from qbayes.lab.bench.figure import SUFFIXES, require_matplotlib

    if out_file is not None:
        check_new_file(out_file, (".json",), overwrite=overwrite)
    if figure is not None:
        check_new_file(figure, SUFFIXES, overwrite=overwrite)
        require_matplotlib()


def _check_clock(clock: str, threads: int) -> None:
    from qbayes.lab.bench.measure import CLOCKS

    check_choice("the clock", clock, tuple(CLOCKS))
    if clock == "cpu" and threads > 1:
        raise BadInput(
            "the clock cpu must be that of one thread: with several it adds them up, waiting included",
            f"--threads {threads}",
            "add --threads 1",
        )


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

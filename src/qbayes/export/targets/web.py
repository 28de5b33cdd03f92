"""``qbayes export --target web``: a folder with a page that runs the program in any browser."""

import math
import shlex
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

from qbayes.errors import BadInput
from qbayes.export.base import (
    TARGETS,
    Reader,
    Target,
    Written,
    check_folder,
    flag,
    kinds,
    require_ops,
    write_folder,
)
from qbayes.integer.onnx.dialect import QOPERATOR
from qbayes.integer.program import Program
from qbayes.posterior.network import NetworkPosterior
from qbayes.tasks import Task

MOST_DRAWS = 200
# inputs on a page, and those of no class among which they are chosen.
_MOST_EXAMPLES, _STRANGE = 100, 512


@dataclass(frozen=True)
class Example:
    """An input in raw units that the page offers, and the answer that belongs to it, if it is known."""

    row: Sequence[float]
    answer: str = ""


@TARGETS.register("web")
@dataclass(frozen=True)
class WebTarget(Target):
    """A static page: draw, drop or paste an input and watch the draws.

    Attributes:
        draws: Draws that the page makes; 20 by default.
        beside: Programs of other widths that the page shows too; none by default.
        float_posterior: What they were made from, shown too; None by default.
        examples: Inputs that the page offers; none by default.
        pixels: The range of raw inputs; by default what the program's input grid holds.
        runtime: The folder ``dist`` of onnxruntime-web where it was not vendored; None by default.
    """

    summary: ClassVar[str] = "a page for any browser, with the models and ONNX Runtime Web"

    draws: int = flag(20, "draws to begin with; 20 by default.", int)
    beside: tuple[Program, ...] = flag(
        (), "a program of other bits to compare with; repeatable.", list[Path], "PROGRAM"
    )
    float_posterior: NetworkPosterior | None = flag(
        None, "the float posterior to compare with.", Path, "FOLDER"
    )
    examples: tuple[Example, ...] = flag((), "so many test inputs of the recorded task on the page.", int)
    pixels: tuple[float, float] | None = flag(
        None, "raw values of black and white; else the program's range.", metavar="LOW,HIGH"
    )
    runtime: Path | None = flag(None, "the folder dist of onnxruntime-web, if it was not vendored.", Path)

    @classmethod
    def ops(cls) -> frozenset[str]:
        return kinds(QOPERATOR.writers)

    @classmethod
    def read(cls, words: Mapping[str, Any], reader: Reader) -> dict[str, Any]:
        options = dict(words)
        if "examples" in words:
            task = reader.task()
            options["examples"] = tuple(_examples(task, words["examples"]))
            if "pixels" not in words and task.input_range is not None:
                options["pixels"] = task.input_range
        if "pixels" in words:
            options["pixels"] = reader.span(words["pixels"])
        if "beside" in words:
            options["beside"] = tuple(map(reader.program, words["beside"]))
        if "float_posterior" in words:
            options["float_posterior"] = reader.float_posterior(words["float_posterior"])
        return options

    def write(self, program: Program, place: Path, *, overwrite: bool = False) -> Written:
        from qbayes.export.web.folder import page_files
        from qbayes.export.web.manifest import check_alike, manifest, name_programs, show_float, show_program

        place = Path(place)
        self._check()
        programs = (program, *self.beside)
        for one in programs:
            require_ops(one, "web", QOPERATOR.writers)
        check_folder(place, overwrite=overwrite)
        shown = [show_program(one, name) for name, one in name_programs(programs)]
        if self.float_posterior is not None:
            shown.insert(0, show_float(self.float_posterior))
        check_alike(shown)
        told = [self._example(example, program) for example in self.examples]
        described = manifest(shown, program, self.draws, self.pixels, told)
        files = page_files(described, shown, self.runtime)
        written = write_folder(place, files)
        sizes = {one.name: len(one.content) for one in shown}
        total = sum(map(len, files.values()))
        facts = {
            "target": "web",
            "folder": str(place),
            "files": sorted(files),
            "models": sizes,
            "bytes": total,
        }
        lines = [*(f"{name}: {size:,} bytes" for name, size in sizes.items())]
        lines.append(f"{place}: {len(files)} files, {total:,} bytes; serve it with any static server:")
        lines.append(f"python3 -m http.server 8000 --bind 127.0.0.1 --directory {shlex.quote(str(place))}")
        lines.append("then open http://127.0.0.1:8000")
        return Written(written, facts, tuple(lines))

    def _check(self) -> None:
        whole = isinstance(self.draws, int) and not isinstance(self.draws, bool)
        if not whole or not 1 <= self.draws <= MOST_DRAWS:
            raise BadInput(
                f"draws must be a whole number from 1 to {MOST_DRAWS}", f"{self.draws!r}", "for example 20"
            )
        if self.pixels is not None and not -math.inf < self.pixels[0] < self.pixels[1] < math.inf:
            raise BadInput(
                "the range of pixels must rise between finite numbers",
                f"{self.pixels[0]:g} … {self.pixels[1]:g}",
                "such as 0,255",
            )

    @staticmethod
    def _example(example: Example, program: Program) -> Mapping[str, Any]:
        count = math.prod(program.signature.input_shape)
        if len(example.row) != count:
            raise BadInput(
                f"an example must have the {count} numbers of an input", f"{len(example.row)}", "flatten it"
            )
        return {"row": [float(f"{number:.6g}") for number in example.row], "answer": example.answer}


def _examples(task: Task, count: int) -> Iterator[Example]:
    """The first test inputs with their answers; of inputs that belong to no class a quarter as many."""
    if not 1 <= count <= _MOST_EXAMPLES:
        raise BadInput(f"--examples must be from 1 to {_MOST_EXAMPLES}", f"{count}", "for example 12")
    x, y = next(iter(task.batches("test", count)))
    for row, answer in zip(x, y, strict=True):
        yield Example(row.flatten().tolist(), _answer(task, answer))
    if task.confusion_name is not None:
        strange = next(iter(task.confusion_batches(_STRANGE)))
        few = max(1, count // 4)
        # neighbours are often patches of one photograph: these are far apart.
        for at in range(few):
            yield Example(strange[(2 * at + 1) * len(strange) // (2 * few)].flatten().tolist(), "no class")


def _answer(task: Task, answer: Any) -> str:
    if task.kind == "classification":
        return str(task.signature.labels[int(answer)])
    return f"{float(answer.flatten()[0]):.4g}"

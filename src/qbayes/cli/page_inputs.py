"""What ``qbayes export --target web`` reads beside its program: models, examples, the range of pixels."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from qbayes.cli.inputs import open_float_posterior, open_program, open_task
from qbayes.errors import BadInput

if TYPE_CHECKING:
    from qbayes import Program, Task
    from qbayes.export.targets.web import Example

MOST_EXAMPLES = 100
_STRANGE = 512


def read_for_page(
    given: Mapping[str, Any], program: "Program", network: str | None, data_dir: Path | None
) -> dict[str, Any]:
    """The options of a page as the target takes them, in place of the words of the command line."""
    found: dict[str, Any] = {}
    if "pixels" in given:
        found["pixels"] = parse_pixels(given["pixels"])
    if "beside" in given:
        found["beside"] = tuple(open_program(path, None) for path in given["beside"])
    if "float_posterior" in given:
        found["float_posterior"] = open_float_posterior(given["float_posterior"], network)
    if "examples" in given:
        task = _task(program, data_dir)
        found["examples"] = tuple(_examples(task, given["examples"]))
        if "pixels" not in given and task.input_range is not None:
            found["pixels"] = task.input_range
    return found


def parse_pixels(text: str) -> tuple[float, float]:
    """``0,255``: the raw inputs that stand for black and for white."""
    try:
        low, high = (float(part) for part in text.split(","))
    except ValueError:
        raise BadInput("--pixels must be two numbers", f"'{text}'", "for example --pixels 0,255") from None
    return low, high


def _examples(task: "Task", count: int) -> Iterator["Example"]:
    """The first test inputs with their answers; of inputs that belong to no class a quarter as many."""
    from qbayes.export.targets.web import Example

    if not 1 <= count <= MOST_EXAMPLES:
        raise BadInput(f"--examples must be from 1 to {MOST_EXAMPLES}", f"{count}", "for example 12")
    x, y = next(iter(task.batches("test", count)))
    for row, answer in zip(x, y, strict=True):
        yield Example(row.flatten().tolist(), _answer(task, answer))
    if task.confusion_name is not None:
        strange = next(iter(task.confusion_batches(_STRANGE)))
        few = max(1, count // 4)
        # neighbours are often patches of one photograph: these are far apart.
        for at in range(few):
            yield Example(strange[(2 * at + 1) * len(strange) // (2 * few)].flatten().tolist(), "no class")


def _task(program: "Program", data_dir: Path | None) -> "Task":
    record = program.provenance.get("task")
    if not isinstance(record, Mapping) or not isinstance(record.get("task"), str):
        raise BadInput(
            "examples need the task that the program was made on", "none is recorded", "leave --examples out"
        )
    options = record.get("options")
    return open_task(str(record["task"]), data_dir, dict(options) if isinstance(options, Mapping) else {})


def _answer(task: "Task", answer: Any) -> str:
    if task.kind == "classification":
        return str(task.signature.labels[int(answer)])
    return f"{float(answer.flatten()[0]):.4g}"

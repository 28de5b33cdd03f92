"""``qbayes export``: a program in another form, for runtimes and machines that have no qbayes."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from qbayes.cli import options
from qbayes.cli.console import out, print_json
from qbayes.cli.inputs import open_float_posterior, open_program, open_task, parse_pixels, recorded_task
from qbayes.errors import BadInput

if TYPE_CHECKING:
    from qbayes import Program, Task
    from qbayes.export.targets.web import Example

# inputs on a page, and those of no class among which they are chosen.
_MOST_EXAMPLES, _STRANGE = 100, 512


def export(
    program: Annotated[
        Path, Argument(metavar="PROGRAM", help="A .qbayes file, or the folder of 'qbayes quantize'.")
    ],
    place: Annotated[
        Path, Argument(metavar="PLACE", help="onnx: the file to write. c, web: a new or empty folder.")
    ],
    target: Annotated[str, Option(help="What to export to: see 'qbayes list targets'.")],
    dialect: Annotated[
        str | None, Option(help="onnx: qoperator (ONNX Runtime, by default) or qdq (OpenVINO).")
    ] = None,
    noise: Annotated[
        str | None,
        Option(help="onnx: inside (the graph draws, by default) or inputs (masks and ε are inputs)."),
    ] = None,
    draws: Annotated[
        int | None, Option(help="onnx: draws in the graph. web: draws to begin with. 20 by default.")
    ] = None,
    outputs: Annotated[
        str | None,
        Option(
            help="onnx: mean, variance, entropy, mutual_information, draws, draw_variances, codes; by commas."
        ),
    ] = None,
    members: Annotated[
        str | None, Option(help="onnx: batch (all in one file, by default) or files (one file each).")
    ] = None,
    name: Annotated[str | None, Option(help="c: prefix of every function and file.")] = None,
    flash: Annotated[str | None, Option(help="c: most flash that it may take, such as 256k.")] = None,
    ram: Annotated[str | None, Option(help="c: most RAM that it may take, such as 64k.")] = None,
    beside: Annotated[
        list[Path] | None,
        Option(metavar="PROGRAM", help="web: a program of other bits to compare with; repeatable."),
    ] = None,
    float_posterior: Annotated[
        Path | None, Option(metavar="FOLDER", help="web: the float posterior to compare with.")
    ] = None,
    examples: Annotated[
        int | None, Option(help="web: so many test inputs of the recorded task on the page.")
    ] = None,
    pixels: Annotated[
        str | None,
        Option(metavar="LOW,HIGH", help="web: raw values of black and white; else the program's range."),
    ] = None,
    runtime: Annotated[
        Path | None, Option(help="web: the folder dist of onnxruntime-web, if it was not vendored.")
    ] = None,
    data_dir: options.DataDir = None,
    network: options.OwnNetwork = None,
    force: Annotated[bool, Option("--force", help="Replace files that are there.")] = False,
    as_json: options.AsJson = False,
) -> None:
    """Turn a program into files that run without qbayes, with its randomness intact.

    \b
    Examples:
      qbayes export mcd.qbayes mcd.onnx --target onnx --draws 50 --outputs mean,entropy
      qbayes export mcd.qbayes mcd.onnx --target onnx --dialect qdq --noise inputs
      qbayes export mcd.qbayes firmware/network --target c --flash 256k --ram 64k --name gesture
      qbayes export mcd-w8a8.qbayes page --target web --beside mcd-w4a4.qbayes --float-posterior runs/mcd
    """
    from qbayes.export import check_options, make_target

    named = None if outputs is None else tuple(part.strip() for part in outputs.split(","))
    given = options.given(
        dialect=dialect,
        noise=noise,
        draws=draws,
        outputs=named,
        members=members,
        name=name,
        flash=flash,
        ram=ram,
        beside=beside or None,
        float_posterior=float_posterior,
        examples=examples,
        pixels=pixels,
        runtime=runtime,
    )
    check_options(target, given)
    opened = open_program(program, network)
    chosen = make_target(target, **{**given, **read_for_page(given, opened, network, data_dir)})
    written = chosen.write(opened, place, overwrite=force)
    if as_json:
        print_json(written.facts)
    else:
        out().print("\n".join(written.lines))


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
        name, options = recorded_task(program)
        if not name:
            raise BadInput(
                "examples need the task that the program was made on",
                "none is recorded",
                "leave --examples out",
            )
        task = open_task(name, data_dir, options)
        found["examples"] = tuple(_examples(task, given["examples"]))
        if "pixels" not in given and task.input_range is not None:
            found["pixels"] = task.input_range
    return found


def _examples(task: "Task", count: int) -> Iterator["Example"]:
    """The first test inputs with their answers; of inputs that belong to no class a quarter as many."""
    from qbayes.export.targets.web import Example

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


def _answer(task: "Task", answer: Any) -> str:
    if task.kind == "classification":
        return str(task.signature.labels[int(answer)])
    return f"{float(answer.flatten()[0]):.4g}"

"""A program as one ONNX model, or as one for each member, written whole or not at all."""

import math
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from qbayes.errors import BadInput
from qbayes.export.base import check_new_files, require_ops
from qbayes.export.onnx.metadata import HASH, Options, content_hash, metadata
from qbayes.export.onnx.noise import ROWS, noise_sites
from qbayes.export.onnx.program_draws import MemberDraws
from qbayes.export.onnx.statistics import Statistics
from qbayes.integer.onnx.graph import OPSET, Graph
from qbayes.integer.onnx.op_context import dtype_of_codes
from qbayes.integer.program import Program
from qbayes.posterior.storage.save import write_together

INPUT = "x"
# protobuf, in which ONNX files are written, holds no more.
LARGEST_MODEL = (1 << 31) - 1
_PER_ROW = ("entropy", "mutual_information")
_PER_DRAW = ("draws", "draw_variances")


def export_onnx(
    program: Program, path: str | Path, options: Options | None = None, *, force: bool = False
) -> list[Path]:
    """Write ``program`` to ``path``, or its members to ``name-0.onnx``, ``name-1.onnx``, … beside it."""
    path, options = Path(path), options or Options()
    if path.suffix != ".onnx":
        raise BadInput("an ONNX file must end in .onnx", f"{path}", f"for example {path.stem}.onnx")
    count = len(program.members)
    groups = [[index] for index in range(count)] if options.members == "files" else [list(range(count))]
    one = len(groups) == 1
    paths = [path if one else path.with_stem(f"{path.stem}-{index}") for index in range(len(groups))]
    check_new_files(paths, force=force)
    models = [onnx_model(program, options, group) for group in groups]
    write_together(dict(zip(paths, models, strict=True)))
    return paths


def onnx_model(program: Program, options: Options, members: list[int] | None = None) -> bytes:
    """The model of these members (all by default) as the bytes of a file."""
    held = list(range(len(program.members))) if members is None else members
    require_ops(program, "onnx", options.spelling.writers)
    g = Graph()
    x = g.input(INPUT, np.float32, (ROWS, *program.signature.input_shape))
    codes = _codes_of_draws(g, program, options, held, x)
    _outputs(g, program, options, codes, held)
    title = f"qbayes program of '{program.signature.task}', opset {OPSET}, dialect {options.dialect}"
    model = g.model("program", title, metadata(program, options, held))
    found = content_hash(model)
    model.metadata_props.add(key=HASH, value=found)
    if model.ByteSize() > LARGEST_MODEL:
        raise BadInput(
            "an ONNX file holds at most 2 GB", f"{model.ByteSize():,} bytes", "export with --members files"
        )
    return model.SerializeToString(deterministic=True)


def _codes_of_draws(
    g: Graph, program: Program, options: Options, held: list[int], x: str
) -> list[dict[str, str]]:
    """The codes of the heads of each member that is used: draw d is of the held member ``d mod M``."""
    sites = noise_sites(program)
    given = None
    if options.noise == "inputs":
        given = {s.site: g.input(s.name, s.dtype, s.axes(options.draws)) for s in sites.values()}
    found: list[dict[str, str]] = []
    for at, index in enumerate(held[: options.draws]):
        draws = math.ceil((options.draws - at) / len(held))
        with g.scope(f"member{index}"):
            mine = (
                None
                if given is None
                else {site: of_member(g, tensor, at, len(held)) for site, tensor in given.items()}
            )
            member = program.members[index]
            maker = MemberDraws(program, member, options.spelling, draws, sites, mine)
            found.append(maker.write(g, x))
    return found


def of_member(g: Graph, tensor: str, first: int, step: int) -> str:
    """Every ``step``-th draw, from ``first`` on."""
    if step == 1:
        return tensor
    end = np.iinfo(np.int64).max
    return g.node("Slice", tensor, g.whole(first), g.whole(end), g.whole(0), g.whole(step))


def _outputs(
    g: Graph, program: Program, options: Options, codes: list[dict[str, str]], held: list[int]
) -> None:
    used = held[: len(codes)]
    joined = {head: in_order(g, [one[head] for one in codes], options.draws) for head in program.outputs}
    if "codes" in options.outputs:
        for head, tensor in joined.items():
            value = program.values[program.outputs[head]]
            shape = (options.draws, ROWS, *value.shape)
            g.output(tensor, codes_name(head), dtype_of_codes(value.bits), shape)
    wanted = tuple(name for name in options.outputs if name != "codes")
    if not wanted:
        return
    reals = {
        head: in_order(
            g, [_real(g, program, i, head, one) for i, one in zip(used, codes, strict=True)], options.draws
        )
        for head in program.outputs
    }
    for head in program.constant_heads:
        reals[head] = _constant_head(g, program, used, head, options.draws, reals["mean"])
    row = program.values[next(iter(program.outputs.values()))].shape
    statistics = Statistics(g, program.signature, row, options.spelling.lanes.dtype, options.draws)
    hand_out(g, statistics.write(reals, wanted), row, options.draws)


def hand_out(g: Graph, made: Mapping[str, str], row: tuple[int, ...], draws: int) -> None:
    """Statistics as outputs of the model, under their names."""
    for name, tensor in made.items():
        shape = (ROWS,) if name in _PER_ROW else (ROWS, *row)
        g.output(tensor, name, np.float32, (draws, *shape) if name in _PER_DRAW else shape)


def codes_name(head: str) -> str:
    return f"codes.{head}" if head else "codes"


def in_order(g: Graph, parts: list[str], draws: int) -> str:
    """The draws of all members, ``(draws, …)`` in the order of their numbers."""
    if len(parts) == 1:
        return parts[0]
    by_member = [draw for first in range(len(parts)) for draw in range(first, draws, len(parts))]
    order = np.argsort(by_member)
    return g.node("Gather", g.node("Concat", *parts, axis=0), g.constant(order, np.int64), axis=0)


def _real(g: Graph, program: Program, index: int, head: str, codes: dict[str, str]) -> str:
    """``S (q − Z)`` in float32."""
    name, member = program.outputs[head], program.members[index]
    centred = g.node("Sub", g.cast(codes[head], np.float32), g.constant(np.float32(member.zeros[name])))
    return g.node("Mul", centred, g.constant(np.float32(member.scales[name])))


def _constant_head(g: Graph, program: Program, used: list[int], head: str, draws: int, like: str) -> str:
    """A head that no input reaches, for every draw and row."""
    shape = program.values[next(iter(program.outputs.values()))].shape
    numbers = np.array([program.constant_head(head, used[d % len(used)]) for d in range(draws)], np.float32)
    rows = g.node("Mul", like, g.constant(np.float32(0)))
    return g.node("Add", rows, g.constant(numbers.reshape(draws, 1, *shape)))

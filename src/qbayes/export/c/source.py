"""The part of the C that is made for one program: its constants, its arena, and its ops in their order."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

from qbayes.errors import BadInput
from qbayes.export.c.data import Data, in_comment
from qbayes.export.c.emitters import emit
from qbayes.export.c.layer import MOST_ROWS, ROWS_A_DOT, Layer, layer_of
from qbayes.export.c.plan import (
    SECTIONS,
    Arena,
    Need,
    Section,
    Steps,
    arrange,
    scratch_key,
    section,
    steps_of,
    value_key,
)
from qbayes.export.c.walk import Context
from qbayes.integer.ops import Op, Weighted
from qbayes.integer.program import Program
from qbayes.integer.proof.verify import verify
from qbayes.integer.statistics import moments, softmax
from qbayes.integer.statistics.summary import Units, is_classifier, units

_TYPES = {"codes": "uint8_t", "wide": "uint16_t"}
_MOST_WEIGHTS = 1 << 30
_SMALL_ARENA = 4096  # bytes that any board can spare
_LAID_OUT: tuple[Section, ...] = ("patch", "wide", "codes")


@dataclass(frozen=True)
class Network:
    """A program's constants and calls as C, and what they need."""

    program: Program
    data: Data
    needs: tuple[Need, ...]
    arena: Arena
    steps: Steps
    text: str

    @property
    def input_type(self) -> str:
        return _TYPES[section(self.program.values[self.program.input].bits)]

    @property
    def output_type(self) -> str:
        widest = max(self.program.values[name].bits for name in self.program.outputs.values())
        return _TYPES[section(widest)]

    @property
    def outputs(self) -> int:
        """Numbers in an answer: classes, or targets."""
        return math.prod(next(iter(_heads(self.program).values())))

    @property
    def output_codes(self) -> int:
        return sum(math.prod(shape) for shape in _heads(self.program).values())

    @property
    def grids(self) -> list[int]:
        return input_grids(self.program)[0]

    @property
    def constant_bytes(self) -> int:
        return sum(self.data.bytes.values())

    @property
    def statistics_bytes(self) -> int:
        """Sums, squares and noise in 64 bits, and the answers of a draw."""
        kept = 2 if is_classifier(self.program) else 3
        return 8 * kept * self.outputs + 2 * self.output_codes

    @property
    def arena_bytes(self) -> int:
        # the parts of a struct start at multiples of their elements' sizes, and its size is one of eight.
        total = self.statistics_bytes + self.arena.bytes + 2 * len(SECTIONS)
        return -(-total // 8) * 8


def _heads(program: Program) -> Mapping[str, tuple[int, ...]]:
    """The computed heads in the order of a draw's codes: what is predicted first."""
    order = sorted(program.outputs, key=lambda head: head == "log_variance")
    return {head: program.values[program.outputs[head]].shape for head in order}


def input_grids(program: Program) -> tuple[list[int], list[int]]:
    """For each different grid of the input the first member that has it, and for each member its grid."""
    firsts: dict[tuple[int, float], int] = {}
    of_member: list[int] = []
    for index, member in enumerate(program.members):
        key = member.zeros[program.input], member.scales[program.input]
        firsts.setdefault(key, index)
        of_member.append(list(firsts).index(key))
    return list(firsts.values()), of_member


def network_of(program: Program, most_rows: int = ROWS_A_DOT) -> Network:
    """The C of a program, after it has been proven right."""
    verify(program)
    steps = steps_of(program)
    for head, name in program.outputs.items():
        if steps.root[name] == program.input:
            raise BadInput(
                "every head must be computed", f"'{head}' is the input itself", "put a layer before it"
            )
    layers = {op.name: _layer(program, op, most_rows) for op in program.ops if isinstance(op, Weighted)}
    needs = _needs(steps, layers)
    arena = arrange(needs)
    if most_rows == ROWS_A_DOT:
        layers = _roomier(steps, layers, arena)
        needs = _needs(steps, layers)
        arena = arrange(needs)
    data = Data()
    maker = _Maker(program, steps, layers, arena, data)
    functions = maker.functions()
    emit_statistics(data, program)
    data.add_array("the input", "uint32_t", "grid_of_member", input_grids(program)[1])
    text = "\n".join([*data.texts, "", _arena(program, arena), "", *functions])
    return Network(program, data, tuple(needs), arena, steps, text)


def _needs(steps: Steps, layers: Mapping[str, Layer]) -> list[Need]:
    scratch = [layers[op.name].scratch(at) for at, op in enumerate(steps.order) if op.name in layers]
    return [*steps.needs(), *(need for some in scratch for need in some)]


def _roomier(steps: Steps, layers: Mapping[str, Layer], arena: Arena) -> dict[str, Layer]:
    """More rows unpacked at once, so that inputs are gathered less often, where RAM is idle or small."""
    found, room = dict(layers), max(arena.bytes, _SMALL_ARENA)
    for name, layer in layers.items():
        if layer.direct or layer.wide:
            continue
        most = MOST_ROWS if layer.rows_at_once == ROWS_A_DOT else ROWS_A_DOT
        for rows in range(most, layer.rows_at_once, -ROWS_A_DOT):
            tried = {**found, name: replace(layer, rows_at_once=rows)}
            if arrange(_needs(steps, tried)).bytes <= room:
                found = tried
                break
    return found


def _layer(program: Program, op: Weighted, most_rows: int) -> Layer:
    if math.prod(op.weight_shape) > _MOST_WEIGHTS:
        raise BadInput(
            f"'{op.name}' must have at most 2^30 weights in C", f"{math.prod(op.weight_shape)}", "prune it"
        )
    return layer_of(program, op, most_rows)


def _arena(program: Program, arena: Arena) -> str:
    """One static struct; a section that nothing lies in is left out."""
    parts = ["int64_t sums[NETWORK_OUTPUTS];", "int64_t squares[NETWORK_OUTPUTS];"]
    if not is_classifier(program):
        parts.append("int64_t noise[NETWORK_OUTPUTS];")
    used: list[Section] = [name for name in _LAID_OUT if arena.sizes[name]]
    parts += [f"{SECTIONS[name][0]} {name}[{arena.sizes[name]}];" for name in used]
    parts.append("uint16_t answers[NETWORK_CODES];")
    return "static struct {\n" + "\n".join(f"    {part}" for part in parts) + "\n} arena;"


@dataclass(frozen=True)
class _Maker:
    program: Program
    steps: Steps
    layers: Mapping[str, Layer]
    arena: Arena
    data: Data

    def functions(self) -> list[str]:
        kind = _TYPES[section(self.program.values[self.program.input].bits)]
        shared = [line for at, op in enumerate(self.steps.shared) for line in self._call(op, at)]
        first = len(self.steps.shared)
        drawn = [line for at, op in enumerate(self.steps.drawn) for line in self._call(op, first + at)]
        unused = ["(void)member;", "(void)input;"]
        quiet = "const qb_noise *noise = NULL;"
        return [
            _function(
                f"qb_run_shared(uint32_t member, const {kind} *input)", [quiet, *unused, _VOID, *shared]
            ),
            _function(
                f"qb_run_draw(uint32_t member, const {kind} *input, const qb_noise *noise)",
                [*unused, _VOID, *drawn],
            ),
            _function("read_answers(void)", self._answers()),
        ]

    def _call(self, op: Op, at: int) -> list[str]:
        name = f"op{at}"
        layer = self.layers.get(op.name)
        lines = emit(op, Context(self.program, self.data, self.place, name, self.scratch, layer))
        return [f"/* {in_comment(op.name)} */", "{", *(f"    {line}" for line in lines), "}"] if lines else []

    def scratch(self, op: str, what: str) -> int | None:
        """Where memory lies that an op works in, among its section's elements."""
        return self.arena.offsets.get(scratch_key(op, what))

    def place(self, value: str) -> str:
        """The memory of a value in C."""
        root = self.steps.root[value]
        if root == self.program.input:
            return "input"
        return f"(arena.{section(self.program.values[root].bits)} + {self.arena.offsets[value_key(root)]})"

    def _answers(self) -> list[str]:
        lines, at = ["uint32_t i;"], 0
        for head, shape in _heads(self.program).items():
            count = math.prod(shape)
            source = f"{self.place(self.program.outputs[head])}[i]"
            lines += [f"for (i = 0u; i < {count}u; i++) {{", f"    arena.answers[{at} + i] = {source};", "}"]
            at += count
        return lines


_VOID = "(void)noise;"


def _function(head: str, lines: list[str]) -> str:
    return f"static void {head} {{\n" + "\n".join(f"    {line}" for line in lines) + "\n}\n"


STATISTICS = "the statistics"


def emit_statistics(data: Data, program: Program) -> None:
    """Tables of exp and log, or the numbers of a regression; then what the float variant needs."""
    data.add_array(STATISTICS, "uint32_t", "log_table", softmax.log_table().tolist())
    if is_classifier(program):
        _classifier(data, program)
    else:
        _regression(data, program, units(program))
    data.texts.append("#ifdef NETWORK_FLOAT")
    before = dict(data.bytes)
    _floats(data, program)
    data.bytes.clear()
    data.bytes.update(before)  # counted without the float variant
    data.texts.append("#endif")


def _classifier(data: Data, program: Program) -> None:
    name = program.outputs[""]
    tables = []
    for member in program.members:
        table = softmax.exp_table(member.scales[name], program.values[name].bits).tolist()
        while len(table) > 1 and table[-1] == 0:
            table.pop()
        tables.append(table)
    arrays = [data.array(STATISTICS, "uint32_t", table) for table in tables]
    data.pointers(STATISTICS, "uint32_t", "exp_table", arrays)
    data.add_array(STATISTICS, "uint32_t", "exp_entries", [len(table) for table in tables])


def _regression(data: Data, program: Program, numbers: Units) -> None:
    scalings = {"mean": numbers.means, "noise": numbers.exponents}
    for name, members in scalings.items():
        if members:
            data.add_array(STATISTICS, "int32_t", f"{name}_zero", [one.zero for one in members])
            data.add_array(STATISTICS, "int32_t", f"{name}_multiplier", [one.multiplier for one in members])
            data.add_array(STATISTICS, "uint32_t", f"{name}_shift", [one.shift for one in members])
    if numbers.exponents:
        data.add_array(STATISTICS, "uint32_t", "power_table", moments.power_table().tolist())
    else:
        arrays = [data.array(STATISTICS, "int64_t", noise) for noise in numbers.noise]
        data.pointers(STATISTICS, "int64_t", "noise_variance", arrays)


def _floats(data: Data, program: Program) -> None:
    signature, firsts = program.signature, {}
    for member in program.members:
        firsts.setdefault((member.zeros[program.input], member.scales[program.input]), member)
    data.add_array("", "float", "input_mean", signature.transform.mean.tolist())
    data.add_array("", "float", "input_std", signature.transform.std.tolist())
    data.add_array("", "float", "input_scale", [scale for _, scale in firsts])
    data.add_array("", "uint32_t", "input_zero", [zero for zero, _ in firsts])
    places = 2.0**-softmax.FRACTION_BITS
    if signature.target is not None:
        places = 2.0 ** -units(program).fraction
        data.add_array("", "float", "target_mean", signature.target.mean.tolist())
        data.add_array("", "float", "target_std", signature.target.std.tolist())
        data.add_array(
            "", "float", "target_log_std", [math.log(std) for std in signature.target.std.tolist()]
        )
    data.texts.append(f"static const float mean_unit = {places.hex()}f;")
    if signature.target is None:
        data.texts.append(f"static const float variance_unit = {(2.0**-moments.VARIANCE_BITS).hex()}f;")

"""The constants of the statistics over draws, and of the functions that take and give floats."""

import math

from qbayes.export.c.data import Data
from qbayes.integer.program.program import Program
from qbayes.integer.statistics import moments, softmax
from qbayes.integer.statistics.summary import Units, is_classifier, units

STATISTICS = "the statistics"


def emit_statistics(data: Data, program: Program) -> None:
    """Tables of exp and log, or the numbers of a regression; then what the float variant needs."""
    data.named(STATISTICS, "uint32_t", "log_table", softmax.log_table().tolist())
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
    data.named(STATISTICS, "uint32_t", "exp_entries", [len(table) for table in tables])


def _regression(data: Data, program: Program, numbers: Units) -> None:
    scalings = {"mean": numbers.means, "noise": numbers.exponents}
    for name, members in scalings.items():
        if members:
            data.named(STATISTICS, "int32_t", f"{name}_zero", [one.zero for one in members])
            data.named(STATISTICS, "int32_t", f"{name}_multiplier", [one.multiplier for one in members])
            data.named(STATISTICS, "uint32_t", f"{name}_shift", [one.shift for one in members])
    if numbers.exponents:
        data.named(STATISTICS, "uint32_t", "power_table", moments.power_table().tolist())
    else:
        arrays = [data.array(STATISTICS, "int64_t", noise) for noise in numbers.noise]
        data.pointers(STATISTICS, "int64_t", "noise_variance", arrays)


def _floats(data: Data, program: Program) -> None:
    signature, firsts = program.signature, {}
    for member in program.members:
        firsts.setdefault((member.zeros[program.input], member.scales[program.input]), member)
    data.named("", "float", "input_mean", signature.transform.mean.tolist())
    data.named("", "float", "input_std", signature.transform.std.tolist())
    data.named("", "float", "input_scale", [scale for _, scale in firsts])
    data.named("", "uint32_t", "input_zero", [zero for zero, _ in firsts])
    places = 2.0**-softmax.FRACTION_BITS
    if signature.target is not None:
        places = 2.0 ** -units(program).fraction
        data.named("", "float", "target_mean", signature.target.mean.tolist())
        data.named("", "float", "target_std", signature.target.std.tolist())
        data.named("", "float", "target_log_std", [math.log(std) for std in signature.target.std.tolist()])
    data.texts.append(f"static const float mean_unit = {places.hex()}f;")
    if signature.target is None:
        data.texts.append(f"static const float variance_unit = {(2.0**-moments.VARIANCE_BITS).hex()}f;")

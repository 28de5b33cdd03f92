"""What the templates leave open: numbers, types and words of one network."""

import math
import re
from collections.abc import Sequence

from qbayes.export.c.data import in_comment
from qbayes.export.c.source import Network, input_grids
from qbayes.integer.arithmetic.grid import MOST_BITS, MOST_WIDE_BITS
from qbayes.integer.program import Program
from qbayes.integer.statistics import moments, softmax
from qbayes.integer.statistics.summary import is_classifier, units


def count(shape: Sequence[int]) -> int:
    return math.prod(shape)


def fill_template(template: str, network: Network) -> str:
    """The public header: every ``@WORD@`` of the template becomes what it is for this network."""
    program = network.program
    given = program.values[program.input]
    words = {
        "SUMMARY": in_comment(_summary(program)),
        "SHAPE": " x ".join(map(str, given.shape)),
        "INPUTS": str(count(given.shape)),
        "INPUT_BITS": str(given.bits),
        "INPUT_TOP": str((1 << given.bits) - 1),
        "INPUT_TYPE": network.input_type,
        "GRIDS": str(len(input_grids(program)[0])),
        "OUTPUTS": str(network.outputs),
        "CODES": str(network.output_codes),
        "OUTPUT_TYPE": network.output_type,
        "MEMBERS": str(len(program.members)),
        "CLASSIFIER": str(int(is_classifier(program))),
        "CONSTANT_BYTES": str(network.constant_bytes),
        "ARENA_BYTES": str(network.arena_bytes),
        **(_of_classifier(program) if is_classifier(program) else _of_regression(network)),
    }
    return re.sub(r"@(\w+)@", lambda found: words[found[1]], template)


def _of_classifier(program: Program) -> dict[str, str]:
    labels = ", ".join(program.signature.labels[:20])
    return {
        "OUTPUTS_ARE": in_comment("one probability a class" + (f": {labels}" if labels else "")),
        "CODES_ARE": ": those of the class scores",
        "MEAN_BITS": str(softmax.FRACTION_BITS),
        "VARIANCE_BITS": str(moments.VARIANCE_BITS),
        "UNITS": "Probabilities have no unit.",
        "STATISTICS": "The mean of the\n * probabilities, their unbiased variance over the draws, and "
        "the entropy of the mean.",
        "FLOAT_UNITS": ": probabilities and nats",
    }


def _of_regression(network: Network) -> dict[str, str]:
    program = network.program
    fraction = units(program).fraction
    learnt = "log_variance" in program.outputs
    return {
        "OUTPUTS_ARE": "one mean and one variance a target",
        "CODES_ARE": ": those of the means, then those of the log-variances"
        if learnt
        else ": those of the means",
        "MEAN_BITS": str(fraction),
        "VARIANCE_BITS": str(2 * fraction),
        "UNITS": "\n * They are those of standardised targets: y = mean * std + offset.",
        "STATISTICS": "The mean of the\n * draws' means, the predictive variance (that of the draws' "
        "means and the noise in the data), and the\n * entropy of a Gaussian with that variance, summed "
        "over the targets.",
        "FLOAT_UNITS": " (raw targets)",
    }


def _summary(program: Program) -> str:
    bits = program.precision.get("weight"), program.precision.get("activation")
    label = f" at W{bits[0]}A{bits[1]}" if all(isinstance(n, int) for n in bits) else ""
    members = len(program.members)
    return f"A network of the task '{program.signature.task}'{label}, {members} member{'s' * (members > 1)}."


def settings(network: Network) -> str:
    """Switches of the C that follow from the program."""
    program = network.program
    bits = program.values[program.input].bits
    learnt = int("log_variance" in program.outputs)
    lines = [
        "/* Made by qbayes for network.c alone. Codes of a full byte or word cannot be above the grid. */",
        f"#define NETWORK_CHECK_CODES {int(bits not in (MOST_BITS, MOST_WIDE_BITS))}",
        f"#define NETWORK_LEARNT_NOISE {learnt}",
        f"#define NETWORK_INPUT_CHANNELS {program.values[program.input].shape[0]}u",
    ]
    if program.signature.target is not None:
        lines.append(f"#define NETWORK_TARGETS {len(program.signature.target.mean)}u")
    return "\n".join(lines)


def write_guarded(file: str, *parts: str) -> str:
    """The text of a header that is read once."""
    guard = file.upper().replace(".", "_")
    return "\n".join([f"#ifndef {guard}", f"#define {guard}", "", *parts, "", "#endif", ""])

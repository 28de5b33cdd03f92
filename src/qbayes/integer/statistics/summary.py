"""What a program answers in integers alone, from the codes of its heads: for targets that have no float.

A classifier gives the mean of its probabilities (units of 2^−24), their variance over the draws (2^−32) and
the entropy of the mean (2^−24 nats), by ``softmax``. A regression gives mean, variance and entropy in units
of the network's output, by ``moments``; targets are standardised, so that the task's units are
``mean · std + offset``. Draw d belongs to member ``d mod M``.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from qbayes.integer.arithmetic.fixed_point import fixed_point, rescale
from qbayes.integer.ops.base import reach
from qbayes.integer.program import Program
from qbayes.integer.statistics import moments, softmax
from qbayes.posterior.likelihood import Categorical

_BITS_FOR_NOISE = 10


@dataclass(frozen=True, eq=False)
class Answer:
    """Integers ``(rows, outputs)``, the entropy ``(rows,)``; heads are flattened."""

    mean: Tensor
    variance: Tensor
    entropy: Tensor


@dataclass(frozen=True)
class Scaling:
    """``round((q − Z) m / 2^s)`` of one member's codes."""

    zero: int
    multiplier: int
    shift: int

    def apply(self, codes: Tensor) -> Tensor:
        return rescale(codes.long() - self.zero, self.multiplier, self.shift)


@dataclass(frozen=True)
class Units:
    """The numbers of a regression: f, and for each member how its codes become z, and its log-variance v.

    ``exponents`` scale the codes of a computed log-variance; else ``noise`` holds v, one a target.
    """

    fraction: int
    means: tuple[Scaling, ...]
    exponents: tuple[Scaling, ...] = ()
    noise: tuple[tuple[int, ...], ...] = ()


def is_classifier(program: Program) -> bool:
    return isinstance(program.signature.likelihood, Categorical)


def units(program: Program) -> Units:
    """Those of a regression's program."""
    name = program.outputs["mean"]
    bits = program.values[name].bits
    largest = max(reach(bits, m.zeros[name]) * m.scales[name] for m in program.members)
    fraction = _fraction(largest, _largest_log_variance(program))
    means = tuple(_scaling(program, name, index, fraction) for index in range(len(program.members)))
    if "log_variance" in program.outputs:
        head = program.outputs["log_variance"]
        found = range(len(program.members))
        per_code = softmax.FRACTION_BITS, math.log(2)
        return Units(fraction, means, tuple(_scaling(program, head, index, *per_code) for index in found))
    most = 1 << moments.MOST_VARIANCE_BITS
    noise = tuple(
        tuple(
            round(min(max(math.exp(min(number, 700.0)) * 2.0 ** (2 * fraction), 1), most))
            for number in program.constant_head("log_variance", index)
        )
        for index in range(len(program.members))
    )
    return Units(fraction, means, noise=noise)


def _fraction(largest: float, log_variance: float) -> int:
    """The largest f at which no mean leaves 2^23 and no noise 2^46; noise costs 10 bits at most."""
    of_mean = moments.VALUE_BITS - math.frexp(largest)[1]
    of_noise = (moments.MOST_VARIANCE_BITS - math.ceil(log_variance / math.log(2))) // 2
    return max(min(of_mean, of_noise), of_mean - _BITS_FOR_NOISE)


def _largest_log_variance(program: Program) -> float:
    if "log_variance" not in program.outputs:
        return max(program.constant_heads["log_variance"])
    name = program.outputs["log_variance"]
    top = (1 << program.values[name].bits) - 1
    return max((top - m.zeros[name]) * m.scales[name] for m in program.members)


def _scaling(program: Program, name: str, member: int, places: int, divisor: float = 1.0) -> Scaling:
    held = program.members[member]
    m, s = fixed_point(torch.tensor(held.scales[name] / divisor, dtype=torch.float64) * 2.0**places)
    return Scaling(held.zeros[name], int(m), int(s))


def answer(program: Program, codes: Mapping[str, Tensor]) -> Answer:
    """From the codes ``(draws, rows, …)`` of every head."""
    flat = {head: tensor.flatten(2) for head, tensor in codes.items()}
    return _classify(program, flat[""]) if is_classifier(program) else _regress(program, flat)


def _classify(program: Program, codes: Tensor) -> Answer:
    name = program.outputs[""]
    bits = program.values[name].bits
    tables = [softmax.exp_table(member.scales[name], bits) for member in program.members]
    draws = [softmax.softmax(codes[d], tables[d % len(tables)]) for d in range(len(codes))]
    probabilities = torch.stack(draws)
    mean = softmax.mean(probabilities)
    return Answer(mean, moments.probability_variance(probabilities), softmax.entropy(mean))


def _regress(program: Program, codes: Mapping[str, Tensor]) -> Answer:
    numbers, members = units(program), len(program.members)
    count = len(codes["mean"])
    z = torch.stack([numbers.means[d % members].apply(codes["mean"][d]) for d in range(count)])
    if numbers.exponents:
        offset = 2 * numbers.fraction << softmax.FRACTION_BITS
        exponents = [numbers.exponents[d % members].apply(codes["log_variance"][d]) for d in range(count)]
        noise = moments.powers(torch.stack(exponents) + offset)
    else:
        noise = torch.tensor([numbers.noise[d % members] for d in range(count)])[:, None].expand(z.shape)
    variance = moments.variance(z) + moments.mean(noise)
    return Answer(moments.mean(z), variance, moments.gaussian_entropy(variance, numbers.fraction))

r"""Which width each variable gets: the least loss within the limits of cost.

.. math:: \min_b \sum_v \ell_v(b_v) \quad\text{so that}\quad c_k(b) \le C_k

The losses add up over the variables (they are small changes of one function), the costs need not: a
multiply-accumulate costs the product of two widths. All begin at the widest; the step down that loses least
for what it saves of the excess is taken, to any narrower width, until the limits hold. Where costs add up too
this is the greedy solution of the multiple-choice knapsack (Kellerer, Pferschy and Pisinger, *Knapsack
Problems*, 2004). From there, and from every equal width that fits, steps up and exchanges of one step up for
one step down are made while they gain; so the result is never worse than equal widths at the same limits.
"""

import math
from collections.abc import Callable, Mapping, Sequence

Costs = Callable[[Sequence[int]], Sequence[float]]
# an exchange must gain this share of the loss: sums in another order differ in the last bits.
_LEAST_GAIN = 1e-9


def allocate(losses: Sequence[Mapping[int, float]], costs: Costs, limits: Sequence[float]) -> list[int]:
    """A width for each variable from the widths of its losses; the narrowest where nothing fits."""
    falling = [_falling(by_width) for by_width in losses]
    widths = [sorted(by_width) for by_width in falling]
    starts = [_narrow_to_fit(falling, widths, costs, limits)]
    for width in sorted({width for options in widths for width in options}):
        equal = [min(options, key=lambda one: abs(one - width)) for options in widths]
        if _fits(costs(equal), limits):
            starts.append(equal)
    found = [_improve(start, falling, widths, costs, limits) for start in starts]
    return min(found, key=lambda chosen: _total(falling, chosen))


def _improve(
    chosen: list[int],
    losses: Sequence[Mapping[int, float]],
    widths: Sequence[Sequence[int]],
    costs: Costs,
    limits: Sequence[float],
) -> list[int]:
    while (better := _better(chosen, losses, widths, costs, limits)) is not None:
        chosen = better
    return chosen


def _narrow_to_fit(
    losses: Sequence[Mapping[int, float]],
    widths: Sequence[Sequence[int]],
    costs: Costs,
    limits: Sequence[float],
) -> list[int]:
    """From the widest down to what fits; the narrowest where nothing does."""
    chosen = [options[-1] for options in widths]
    while not _fits(costs(chosen), limits):
        step = _cheapest_step_down(chosen, losses, widths, costs, limits)
        if step is None:
            break
        chosen[step[0]] = step[1]
    return chosen


def _total(losses: Sequence[Mapping[int, float]], chosen: Sequence[int]) -> float:
    return sum(by_width[width] for by_width, width in zip(losses, chosen, strict=True))


def _falling(by_width: Mapping[int, float]) -> dict[int, float]:
    """More bits lose no more: what a measurement says otherwise is its noise."""
    found: dict[int, float] = {}
    least = 0.0
    for width in sorted(by_width, reverse=True):
        least = found[width] = max(least, by_width[width])
    return found


def _fits(cost: Sequence[float], limits: Sequence[float]) -> bool:
    return all(one <= limit for one, limit in zip(cost, limits, strict=True))


def _cheapest_step_down(
    chosen: list[int],
    losses: Sequence[Mapping[int, float]],
    widths: Sequence[Sequence[int]],
    costs: Costs,
    limits: Sequence[float],
) -> tuple[int, int] | None:
    """The variable and its new width with the least loss for what it saves of the costs beyond a limit.

    What a step saves below the limit does not count: else the last one would be larger than it need be.
    """
    now = costs(chosen)
    best, found = math.inf, None
    for variable, options in enumerate(widths):
        for width in options:
            if width >= chosen[variable]:
                break
            then = costs(_with(chosen, variable, width))
            saved = sum(
                (before - max(after, limit)) / limit
                for before, after, limit in zip(now, then, limits, strict=True)
                if before > limit
            )
            lost = losses[variable][width] - losses[variable][chosen[variable]]
            # a step that costs nothing saves nothing either: it can wait for ever.
            if saved > 0 and lost / saved < best:
                best, found = lost / saved, (variable, width)
    return found


def _better(
    chosen: list[int],
    losses: Sequence[Mapping[int, float]],
    widths: Sequence[Sequence[int]],
    costs: Costs,
    limits: Sequence[float],
) -> list[int] | None:
    """The choice with least loss that is one step up, or an exchange of two steps, away; None at the end."""
    best = begun = _total(losses, chosen)
    found = None
    for raised, up in _steps(chosen, widths, 1):
        higher = _with(chosen, raised, up)
        gain = losses[raised][chosen[raised]] - losses[raised][up]
        lowered = [(-1, 0), *(step for step in _steps(chosen, widths, -1) if step[0] != raised)]
        for variable, down in lowered:
            lost = 0.0 if variable < 0 else losses[variable][down] - losses[variable][chosen[variable]]
            then = begun - gain + lost
            if then >= best - _LEAST_GAIN * begun:
                continue
            candidate = higher if variable < 0 else _with(higher, variable, down)
            if _fits(costs(candidate), limits):
                best, found = then, candidate
    return found


def _steps(chosen: Sequence[int], widths: Sequence[Sequence[int]], direction: int) -> list[tuple[int, int]]:
    """Each variable that has a next wider (1) or narrower (−1) width, with that width."""
    found: list[tuple[int, int]] = []
    for variable, options in enumerate(widths):
        place = options.index(chosen[variable]) + direction
        if 0 <= place < len(options):
            found.append((variable, options[place]))
    return found


def _with(chosen: Sequence[int], variable: int, width: int) -> list[int]:
    return [*chosen[:variable], width, *chosen[variable + 1 :]]

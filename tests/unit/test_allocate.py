"""The choice of widths: within the limits, at least as good as every neighbour, near the best there is."""

import itertools
import math
from collections.abc import Mapping, Sequence

from hypothesis import given
from hypothesis import strategies as st

from qbayes.quant.mixed.allocate import allocate

WIDTHS = (2, 3, 4, 8)
sizes = st.lists(st.integers(1, 50), min_size=1, max_size=5)


@st.composite
def losses_of(draw: st.DrawFn, variables: int) -> list[dict[int, float]]:
    """Losses that fall with the width, as a measurement of rounding gives them."""
    found = []
    for _ in range(variables):
        steps = draw(st.lists(st.floats(0.0, 10.0), min_size=len(WIDTHS), max_size=len(WIDTHS)))
        falling = list(itertools.accumulate(steps))[::-1]
        found.append(dict(zip(WIDTHS, falling, strict=True)))
    return found


def total(losses: Sequence[Mapping[int, float]], chosen: Sequence[int]) -> float:
    return sum(by_width[width] for by_width, width in zip(losses, chosen, strict=True))


@given(st.data())
def test_it_fits_and_is_at_most_one_step_from_the_best(data: st.DataObject) -> None:
    sizes_given = data.draw(sizes)
    losses = data.draw(losses_of(len(sizes_given)))

    def costs(chosen: Sequence[int]) -> list[float]:
        return [float(sum(size * width for size, width in zip(sizes_given, chosen, strict=True)))]

    least, most = 2 * sum(sizes_given), 8 * sum(sizes_given)
    limit = float(data.draw(st.integers(least, most)))
    chosen = allocate(losses, costs, [limit])
    assert costs(chosen)[0] <= limit
    every = itertools.product(WIDTHS, repeat=len(sizes_given))
    best = min(total(losses, one) for one in every if costs(one)[0] <= limit)
    # the greedy bound: the last step down is all that the relaxed problem would not have taken whole.
    largest = max(by_width[2] - by_width[8] for by_width in losses)
    assert best - 1e-9 <= total(losses, chosen) <= best + largest + 1e-9


@given(st.data())
def test_neither_equal_widths_nor_a_step_or_two_are_better(data: st.DataObject) -> None:
    sizes_given = data.draw(sizes)
    losses = data.draw(losses_of(2 * len(sizes_given)))

    def costs(chosen: Sequence[int]) -> list[float]:
        """Products of two widths, as of weights and activations; and the first of them alone."""
        pairs = list(zip(chosen[::2], chosen[1::2], strict=True))
        products = sum(size * one * other for size, (one, other) in zip(sizes_given, pairs, strict=True))
        return [
            float(products),
            float(sum(size * one for size, (one, _) in zip(sizes_given, pairs, strict=True))),
        ]

    low, high = costs([2] * len(losses)), costs([8] * len(losses))
    limits = [float(data.draw(st.integers(int(a), int(b)))) for a, b in zip(low, high, strict=True)]
    chosen = allocate(losses, costs, limits)
    assert all(cost <= limit for cost, limit in zip(costs(chosen), limits, strict=True))
    reached = total(losses, chosen)
    for width in WIDTHS:
        equal = [width] * len(losses)
        if all(cost <= limit for cost, limit in zip(costs(equal), limits, strict=True)):
            assert reached <= total(losses, equal) + 1e-9
    for raised in range(len(chosen)):
        for lowered in [None, *(i for i in range(len(chosen)) if i != raised)]:
            other = list(chosen)
            other[raised] = _next(chosen[raised], 1)
            if lowered is not None:
                other[lowered] = _next(chosen[lowered], -1)
            if all(cost <= limit for cost, limit in zip(costs(other), limits, strict=True)):
                assert total(losses, other) >= reached * (1 - 1e-6) - 1e-9


def _next(width: int, direction: int) -> int:
    place = min(max(WIDTHS.index(width) + direction, 0), len(WIDTHS) - 1)
    return WIDTHS[place]


def test_where_nothing_fits_all_are_narrow() -> None:
    losses = [{2: 1.0, 8: 0.0}, {2: 1.0, 8: 0.0}]
    assert allocate(losses, lambda chosen: [float(sum(chosen))], [3.0]) == [2, 2]


def test_without_a_limit_all_are_wide() -> None:
    losses = [{2: 1.0, 8: 0.0}, {2: 1.0, 3: 0.5, 8: 0.0}]
    assert allocate(losses, lambda chosen: [float(sum(chosen))], [math.inf]) == [8, 8]


def test_noise_that_makes_more_bits_look_worse_is_not_believed() -> None:
    losses = [{2: 0.5, 4: 0.1, 8: 0.4}, {2: 0.5, 4: 0.1, 8: 0.0}]
    assert allocate(losses, lambda chosen: [float(sum(chosen))], [16.0]) == [8, 8]
    # at 4 bits the first can lose no less than at 8: both steps down save as much, and the second loses less.
    assert allocate(losses, lambda chosen: [float(sum(chosen))], [12.0]) in ([4, 8], [8, 4])

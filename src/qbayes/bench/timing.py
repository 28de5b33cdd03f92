"""Times of several ways to do the same, measured in turn: what slows the machine slows them all.

Other load only ever adds time, so each way is judged by its fastest run, and ratios are those of the fastest.
On a machine that is never idle, the clock ``cpu`` counts the time that this process was given.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Run = Callable[[], object]
Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


@dataclass(frozen=True)
class Way:
    """One way to do the work: what to call, and how many draws × images a call computes."""

    run: Run
    passes: int


@dataclass(frozen=True)
class Times:
    """All timed calls of one way, in seconds."""

    seconds: Sequence[float]
    passes: int

    @property
    def best(self) -> float:
        """Seconds of the fastest call, per draw and image."""
        return min(self.seconds) / self.passes

    @property
    def call(self) -> float:
        """Seconds of the fastest call: a prediction with all its draws."""
        return min(self.seconds)

    @property
    def median(self) -> float:
        """Seconds of the middle call, per draw and image: how busy the machine was."""
        return sorted(self.seconds)[len(self.seconds) // 2] / self.passes


def stopwatch(run: Run, clock: Clock = time.perf_counter) -> float:
    """Seconds that one call takes."""
    begun = clock()
    run()
    return clock() - begun


def interleaved(
    ways: Mapping[str, Way],
    seconds: float,
    least_rounds: int = 2,
    burst: float = 0.0,
    clock: Clock = time.perf_counter,
) -> dict[str, Times]:
    """One round to warm up, then rounds over all ways in turn until ``seconds`` are over.

    In its turn a way is called for ``burst`` seconds, at least once: the threads of the engine before it may
    go on spinning for some milliseconds, which short calls must not be charged with.
    """
    for way in ways.values():
        way.run()
    found: dict[str, list[float]] = {name: [] for name in ways}
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < least_rounds or time.perf_counter() < deadline:
        for name, way in ways.items():
            end = time.perf_counter() + burst
            found[name].append(stopwatch(way.run, clock))
            while time.perf_counter() < end:
                found[name].append(stopwatch(way.run, clock))
        rounds += 1
    return {name: Times(times, ways[name].passes) for name, times in found.items()}


def affordable_draws(asked: int, seconds_a_draw: float, seconds: float, least: int = 2) -> int:
    """As many of the draws asked for as fit the time of one round, at least ``least``."""
    return max(min(asked, least), min(asked, int(seconds / max(seconds_a_draw, 1e-9))))

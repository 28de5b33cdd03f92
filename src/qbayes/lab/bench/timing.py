"""Times of several ways to do the same, measured in turn: what slows the machine slows them all.

Other load only ever adds time, so each way is judged by its fastest run, and ratios are those of the fastest.
On a machine that is never idle, the clock ``cpu`` counts the time that the process was given.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

Run = Callable[[], object]
# A turn of one way: the seconds of its calls.
Turn = Callable[[], Sequence[float]]
Clock = Callable[[], float]
CLOCKS: Mapping[str, Clock] = {"wall": time.perf_counter, "cpu": time.process_time}


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


def burst(run: Run, seconds: float, clock: Clock = time.perf_counter) -> list[float]:
    """Call for ``seconds``, at least once: the first calls find their data out of the caches."""
    end = time.perf_counter() + seconds
    found = [stopwatch(run, clock)]
    while time.perf_counter() < end:
        found.append(stopwatch(run, clock))
    return found


def interleaved(turns: Mapping[str, Turn], seconds: float, least_rounds: int = 2) -> dict[str, list[float]]:
    """Rounds over all ways in turn until ``seconds`` are over: the times of all calls."""
    found: dict[str, list[float]] = {name: [] for name in turns}
    deadline, rounds = time.perf_counter() + seconds, 0
    while rounds < least_rounds or time.perf_counter() < deadline:
        for name, turn in turns.items():
            found[name] += turn()
        rounds += 1
    return found


def affordable_draws(asked: int, seconds_a_draw: float, seconds: float, least: int = 2) -> int:
    """As many of the draws asked for as fit the time of one round, at least ``least``."""
    return max(min(asked, least), min(asked, int(seconds / max(seconds_a_draw, 1e-9))))

"""What threads share: one value made once, and a switch that stays off as long as any of them needs it."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from qbayes.threads import SwitchedOff, once


def test_eight_threads_make_one_value() -> None:
    made: list[object] = []
    ready = threading.Barrier(8)
    go_on = threading.Event()

    @once
    def value() -> object:
        assert go_on.wait(30)
        made.append(object())
        return made[-1]

    def ask(_: int) -> object:
        ready.wait(30)
        return value()

    with ThreadPoolExecutor(8) as pool:
        found = pool.map(ask, range(8))
        threading.Timer(0.05, go_on.set).start()
        assert set(found) == set(made)
    assert len(made) == 1


def test_what_failed_is_made_again() -> None:
    attempts = iter([MemoryError, None])

    @once
    def value() -> int:
        error = next(attempts)
        if error is not None:
            raise error
        return 3

    with pytest.raises(MemoryError):
        value()
    assert (value(), value()) == (3, 3)


@pytest.mark.parametrize("before", [True, False])
def test_a_switch_is_off_until_the_last_one_leaves(before: bool) -> None:
    """The two overlap: the second comes before the first leaves, and leaves after it."""
    state = [before]
    switch = SwitchedOff(lambda: state[0], lambda on: state.__setitem__(0, on))
    seen = []
    for step in (switch.__enter__, switch.__enter__, switch.__exit__, switch.__exit__):
        step()
        seen.append(state[0])
    assert seen == [False, False, False, before]

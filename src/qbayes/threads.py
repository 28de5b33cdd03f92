"""What the threads of a process share: values that are made once, and switches that several turn off."""

import functools
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


def once(make: Callable[[], T]) -> Callable[[], T]:
    """``functools.cache`` of a function without arguments; one thread makes it, the others wait for it."""
    lock = threading.RLock()
    made: list[T] = []

    @functools.wraps(make)
    def get() -> T:
        if not made:
            with lock:
                if not made:
                    made.append(make())
        return made[0]

    return get


class SwitchedOff:
    """A switch of the whole process, off while any thread is inside this context.

    The first one inside turns it off, the last one outside puts it back. Each for itself would do harm: the
    first to leave would turn it on for all others, and the last would put back the "off" that it had found.
    """

    def __init__(self, read: Callable[[], bool], write: Callable[[bool], object]) -> None:
        self._read, self._write = read, write
        self._lock = threading.Lock()
        self._inside = 0
        self._before = True

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._before = self._read()
                self._write(False)
            self._inside += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0:
                self._write(self._before)

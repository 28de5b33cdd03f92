"""Shelves: full for everyone who asks, however many ask at once and whatever stops the first one."""

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from qbayes.errors import BadInput
from qbayes.registry import Shelf

MEMBER = "import shelf_of_test\nshelf_of_test.SHELF.register('{name}')('{name}')\n"


class Told(ModuleType):
    """What the members' modules find under the name ``shelf_of_test``."""

    SHELF: Shelf[str]
    reached: threading.Event
    go_on: threading.Event
    stop: bool


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """A shelf of three: ``first``, ``middle``, which does as it is told, and ``third``."""
    folder = tmp_path / f"members_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    wait = "shelf_of_test.reached.set()\nassert shelf_of_test.go_on.wait(30)\n"
    stop = "if shelf_of_test.stop:\n    raise KeyboardInterrupt\n"
    files = {"__init__": "", "first": MEMBER, "middle": MEMBER + wait + stop, "third": MEMBER}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    told = Told("shelf_of_test")
    told.SHELF = Shelf("thing", folder.name)
    told.reached, told.go_on, told.stop = threading.Event(), threading.Event(), False
    monkeypatch.setitem(sys.modules, "shelf_of_test", told)
    return told


def test_a_thread_that_asks_meanwhile_waits_for_the_whole_shelf(told: Told) -> None:
    answers: list[tuple[str, list[str], bool]] = []

    def ask() -> None:
        answers.append((told.SHELF["third"], list(told.SHELF), "third" in told.SHELF))

    threads = [threading.Thread(target=ask) for _ in range(3)]
    threads[0].start()
    assert told.reached.wait(30)
    for thread in threads[1:]:
        thread.start()
    threads[1].join(0.1)
    assert not answers
    told.go_on.set()
    for thread in threads:
        thread.join(30)
    assert answers == [("third", ["first", "middle", "third"], True)] * 3


def test_what_was_stopped_is_filled_by_the_next_one_to_ask(told: Told) -> None:
    """Ctrl-C in a notebook, behind the line that registers."""
    told.go_on.set()
    told.stop = True
    with pytest.raises(KeyboardInterrupt):
        list(told.SHELF)
    told.stop = False
    assert list(told.SHELF) == ["first", "middle", "third"]


def test_two_members_of_one_name_are_refused(told: Told) -> None:
    told.SHELF.register("other")("one")
    with pytest.raises(ValueError, match="two members of the shelf 'thing' are called 'other'"):
        told.SHELF.register("other")("two")


def test_an_unknown_name_is_told_with_the_nearest(told: Told) -> None:
    told.go_on.set()
    with pytest.raises(BadInput, match="did you mean 'third'"):
        told.SHELF["thirt"]

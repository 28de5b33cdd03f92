"""Registries: complete for everyone who asks, however many ask at once and whatever stops the first one."""

import importlib
import sys
import threading
from pathlib import Path
from types import ModuleType

import pytest

from qbayes.errors import BadInput
from qbayes.registry import Registry

TEXT = "import registry_of_test\nregistry_of_test.MEMBERS.register('{name}')('{name}')\n"


class Told(ModuleType):
    """What the members' modules find under the name ``registry_of_test``."""

    MEMBERS: Registry[str]
    reached: threading.Event
    go_on: threading.Event
    stop: bool


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Told:
    """A registry of three: ``first``, ``middle``, which does as it is told, and ``third``."""
    folder = tmp_path / f"members_{tmp_path.name.replace('-', '_')}"
    folder.mkdir()
    wait = "registry_of_test.reached.set()\nassert registry_of_test.go_on.wait(30)\n"
    stop = "if registry_of_test.stop:\n    raise KeyboardInterrupt\n"
    files = {"__init__": "", "first": TEXT, "middle": TEXT + wait + stop, "third": TEXT}
    for name, text in files.items():
        (folder / f"{name}.py").write_text(text.format(name=name))
    monkeypatch.syspath_prepend(str(tmp_path))
    importlib.invalidate_caches()
    told = Told("registry_of_test")
    told.MEMBERS = Registry("thing", folder.name)
    told.reached, told.go_on, told.stop = threading.Event(), threading.Event(), False
    monkeypatch.setitem(sys.modules, "registry_of_test", told)
    return told


def imported(told: Told) -> set[str]:
    """The files of the registry's folder that were imported."""
    folder = f"{told.MEMBERS.package}."
    return {name.removeprefix(folder) for name in sys.modules if name.startswith(folder)}


def test_a_thread_that_asks_meanwhile_waits_for_the_whole_registry(told: Told) -> None:
    answers: list[tuple[str, list[str], bool]] = []

    def ask() -> None:
        answers.append((told.MEMBERS["third"], list(told.MEMBERS), "third" in told.MEMBERS))

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


def test_a_member_imports_its_own_file_alone(told: Told) -> None:
    assert told.MEMBERS["third"] == "third"
    assert "third" in told.MEMBERS
    assert imported(told) == {"third"}


def test_a_name_without_a_file_imports_all(told: Told) -> None:
    told.go_on.set()
    assert "fourth" not in told.MEMBERS
    assert imported(told) == {"first", "middle", "third"}


def test_a_thread_that_asks_for_a_member_meanwhile_waits_for_the_end_of_its_file(told: Told) -> None:
    """A class is registered before the rest of its module is there."""
    answers: list[str] = []
    threads = [threading.Thread(target=lambda: answers.append(told.MEMBERS["middle"])) for _ in range(2)]
    threads[0].start()
    assert told.reached.wait(30)
    threads[1].start()
    threads[1].join(0.1)
    assert not answers
    told.go_on.set()
    for thread in threads:
        thread.join(30)
    assert answers == ["middle", "middle"]


def test_what_was_stopped_is_filled_by_the_next_one_to_ask(told: Told) -> None:
    """Ctrl-C in a notebook, behind the line that registers."""
    told.go_on.set()
    told.stop = True
    with pytest.raises(KeyboardInterrupt):
        list(told.MEMBERS)
    told.stop = False
    assert list(told.MEMBERS) == ["first", "middle", "third"]


def test_what_was_registered_elsewhere_outlives_a_stop(told: Told) -> None:
    told.go_on.set()
    told.MEMBERS.register("own")("own")
    told.stop = True
    with pytest.raises(KeyboardInterrupt):
        told.MEMBERS["middle"]
    told.stop = False
    assert list(told.MEMBERS) == ["first", "middle", "own", "third"]


def test_two_members_of_one_name_are_refused(told: Told) -> None:
    told.MEMBERS.register("other")("one")
    with pytest.raises(ValueError, match="two members of the registry 'thing' are called 'other'"):
        told.MEMBERS.register("other")("two")


def test_an_unknown_name_is_told_with_the_nearest(told: Told) -> None:
    told.go_on.set()
    with pytest.raises(BadInput, match="did you mean 'third'"):
        told.MEMBERS["thirt"]

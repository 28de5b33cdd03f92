"""Shelves: folders of interchangeable things, one file a member.

The file registers itself under its own name, so adding a method, data set, backend or figure touches
one file. A shelf imports its folder's modules when it is first asked for a name.
"""

import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from qbayes.errors import unknown_name

T = TypeVar("T")


class Shelf(Generic[T]):
    """Members of one kind by name.

    ``kind`` is the word users see in messages; ``package`` the folder whose modules are the members. Threads
    that ask while another one fills the shelf wait for it; no module of a shelf asks one as it is imported.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._members: dict[str, T] = {}
        self._loaded = False
        self._loading = threading.RLock()

    def register(self, name: str) -> Callable[[T], T]:
        """Put the decorated object on the shelf."""

        def put(member: T) -> T:
            if name in self._members:
                raise ValueError(f"two members of the shelf '{self.kind}' are called '{name}'")
            self._members[name] = member
            return member

        return put

    def __getitem__(self, name: str) -> T:
        self._load()
        if name not in self._members:
            raise unknown_name(self.kind, name, self._members)
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        self._load()
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        self._load()
        return iter(sorted(self._members))

    def _load(self) -> None:
        if self._loaded:
            return
        with self._loading:
            if self._loaded:
                return
            folder = importlib.import_module(self.package)
            for module in pkgutil.iter_modules(folder.__path__):
                self._import(f"{self.package}.{module.name}")
            # last: a shelf that is half full must not look as if it were full.
            self._loaded = True

    def _import(self, module: str) -> None:
        try:
            importlib.import_module(module)
        except BaseException:
            # what Ctrl-C stopped is imported again by the next one to ask, and registers again.
            for name in [name for name in self._members if f"{self.package}.{name}" not in sys.modules]:
                del self._members[name]
            raise

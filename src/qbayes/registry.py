"""Shelves: folders of interchangeable things, one file a member.

The file registers itself under its own name, so adding a method, data set, backend or figure touches
one file. A shelf imports its folder's modules when it is first asked for a name.
"""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from qbayes.errors import unknown_name

T = TypeVar("T")


class Shelf(Generic[T]):
    """Members of one kind by name.

    ``kind`` is the word users see in messages; ``package`` the folder whose modules are the members.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._members: dict[str, T] = {}
        self._loaded = False

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
        self._loaded = True
        folder = importlib.import_module(self.package)
        for module in pkgutil.iter_modules(folder.__path__):
            importlib.import_module(f"{self.package}.{module.name}")

"""Registries: folders of interchangeable things, one file a member.

The file registers its member under the file's name, so that adding a method, data set, backend or figure
touches one file. Asking for a member imports the file of that name alone; listing the members imports the
folder.
"""

import importlib
import pkgutil
import sys
import threading
from collections.abc import Callable, Iterator
from typing import Generic, TypeVar

from qbayes.errors import unknown_name

T = TypeVar("T")


class Registry(Generic[T]):
    """Members of one kind by name.

    ``kind`` is the word users see in messages; ``package`` the folder whose modules register the members.
    Threads that ask while another one imports wait for it; no module of the folder asks its registry as it is
    imported.
    """

    def __init__(self, kind: str, package: str) -> None:
        self.kind = kind
        self.package = package
        self._members: dict[str, T] = {}
        # the module that registered each member.
        self._origins: dict[str, str] = {}
        # names whose module is imported to its end: a module registers its member before that.
        self._ready: set[str] = set()
        self._complete = False
        self._importing = threading.RLock()

    def register(self, name: str) -> Callable[[T], T]:
        """Enter the decorated object under a name."""
        origin = sys._getframe(1).f_globals["__name__"]  # pyright: ignore[reportPrivateUsage]

        def enter(member: T) -> T:
            if name in self._members:
                raise ValueError(f"two members of the registry '{self.kind}' are called '{name}'")
            self._members[name], self._origins[name] = member, origin
            return member

        return enter

    def __getitem__(self, name: str) -> T:
        if name not in self:
            raise unknown_name(self.kind, name, self._members)
        return self._members[name]

    def __contains__(self, name: object) -> bool:
        if not self._complete and name not in self._ready:
            self._import_member(str(name))
        return name in self._members

    def __iter__(self) -> Iterator[str]:
        self._import_all()
        return iter(sorted(self._members))

    def origin(self, name: str) -> str:
        """The module that registered a member."""
        self[name]
        return self._origins[name]

    def _import_member(self, name: str) -> None:
        """Import the module of that name; if it registers no such member, all modules."""
        with self._importing:
            # only names of files are imported: what a user typed is no path to a module.
            if name in self._modules():
                self._import(name)
            if name in self._members:
                self._ready.add(name)
            else:
                self._import_all()

    def _import_all(self) -> None:
        if self._complete:
            return
        with self._importing:
            for name in self._modules():
                self._import(name)
            # last: a registry that is half full must not look complete.
            self._complete = True

    def _modules(self) -> list[str]:
        folder = importlib.import_module(self.package)
        return [module.name for module in pkgutil.iter_modules(folder.__path__)]

    def _import(self, name: str) -> None:
        try:
            importlib.import_module(f"{self.package}.{name}")
        except BaseException:
            # what Ctrl-C stopped is imported again by the next one to ask, and registers again.
            for member in [name for name, origin in self._origins.items() if origin not in sys.modules]:
                del self._members[member], self._origins[member]
            raise

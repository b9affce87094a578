"""Registry of named objects: built-in ones, and ones that users register from their own modules."""

import importlib
import pkgutil
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

T = TypeVar("T")


class Registry(Mapping[str, T]):
    """Entries by name; an entry has import paths rather than classes, so that reading the registry imports nothing.

    Args:
        kind: noun for an entry, for messages.
        own: the entries of this package.
    """

    def __init__(self, kind: str, own: Mapping[str, T]) -> None:
        self.kind = kind
        self._own = frozenset(own)
        self._entries = dict(own)

    def add(self, name: str, entry: T) -> None:
        """Add an entry of a user's module. Safe to repeat with an equal one.

        Raises:
            ValueError: another entry has the name.
        """
        if self._entries.get(name, entry) != entry:
            raise ValueError(f"{self.kind} {name!r} exists already: {self._entries[name]}; register it by another name")
        self._entries[name] = entry

    @property
    def registered(self) -> dict[str, T]:
        """The entries of users."""
        return {name: entry for name, entry in self._entries.items() if name not in self._own}

    def __getitem__(self, name: str) -> T:
        return self._entries[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def merged(kind: str, described: Mapping[str, Mapping[str, T]]) -> dict[str, T]:
    """The entries of all descriptions, by their names.

    Args:
        kind: noun for an entry, for messages.
        described: entries by the name of the module or folder that describes them.

    Raises:
        ValueError: two have an entry of the same name.
    """
    owners: dict[str, str] = {}
    for owner, entries in described.items():
        for name in entries:
            if name in owners:
                raise ValueError(f"{owners[name]} and {owner} have the same {kind}, {name}: rename one of them")
            owners[name] = owner
    return {name: entry for entries in described.values() for name, entry in entries.items()}


def import_modules(named: str | Sequence[str] | None) -> None:
    """Import the modules of a setting `external_lib`, which register their definitions."""
    for module in () if named is None else (named,) if isinstance(named, str) else named:
        importlib.import_module(module)


def path_of(thing: Any) -> str:
    """Import path of a class or function, as `load` takes it.

    Raises:
        ValueError: it was defined inside a function, or is a lambda, where no other process finds it.
    """
    if thing.__qualname__ == "<lambda>":
        raise ValueError(f"a lambda of {thing.__module__} has no name to import it by: define a function")
    if "<locals>" in thing.__qualname__:
        raise ValueError(f"{thing.__qualname__} is inside a function: define it at the top level of its module")
    return f"{thing.__module__}:{thing.__qualname__}"


def load(path: str) -> Any:
    """Import `package.module:name`, or a whole module, `package.module:`."""
    return pkgutil.resolve_name(path)

"""Functions that run right after another package's module has been imported."""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType

Callback = Callable[[ModuleType], None]


class _Finder(MetaPathFinder):
    """Lets the other finders find a module, and runs its callback after its code."""

    def __init__(self) -> None:
        self.callbacks: dict[str, Callback] = {}

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Wrap the loader of a module that has a callback."""
        if fullname not in self.callbacks:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(
            (candidate for finder in others if (candidate := finder.find_spec(fullname, path, target)) is not None),
            None,
        )
        if spec is not None and spec.loader is not None:
            spec.loader = _Loader(spec.loader, self.callbacks[fullname])
        return spec


class _Loader(Loader):
    """A module's own loader, then the callback."""

    def __init__(self, own: Loader, callback: Callback) -> None:
        self.own = own
        self.callback = callback

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """See `Loader`."""
        return self.own.create_module(spec)

    def exec_module(self, module: ModuleType) -> None:
        """Run the module's code with its own loader in place, then the callback."""
        if module.__spec__ is not None:
            module.__spec__.loader = self.own
        module.__loader__ = self.own
        self.own.exec_module(module)
        self.callback(module)


_FINDER = _Finder()


def after_import(name: str, callback: Callback) -> None:
    """Run `callback` with the module `name` as soon as it is imported: now, if it is. A second call replaces the first.

    An exception of the callback fails the import.
    """
    _FINDER.callbacks[name] = callback
    if _FINDER not in sys.meta_path:
        sys.meta_path.insert(0, _FINDER)
    if name in sys.modules:
        callback(sys.modules[name])

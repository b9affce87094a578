"""Packages whose modules are imported one by one, without what the package itself imports."""

from __future__ import annotations

import sys
from importlib.util import find_spec, module_from_spec

# `import kubernetes` imports all of the package: its synchronous client, requests, OAuth, and cryptography where
# google-auth is installed. The operator uses `kubernetes.aio.client` and `kubernetes.aio.config`, without these.
KUBERNETES = ("kubernetes", "kubernetes.aio")


def import_in_parts(names: tuple[str, ...]) -> None:
    """Make packages known without running their `__init__.py`; a package that is imported already stays as it is.

    The process must import their modules by full name: the packages have no attributes but modules imported so.

    Args:
        names: each after the package that contains it.

    Raises:
        ModuleNotFoundError: a package is not installed.
    """
    for name in names:
        if name in sys.modules:
            continue
        spec = find_spec(name)
        if spec is None:
            raise ModuleNotFoundError(f"{name} is not installed", name=name)
        module = sys.modules[name] = module_from_spec(spec)
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)

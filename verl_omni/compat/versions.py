"""The guard of every patch: it refuses a version that nobody has tested it on."""

from __future__ import annotations

from importlib.metadata import version


class PatchOutdated(RuntimeError):
    """The upstream version moved; read the patch again."""


def require(distribution: str, tested: frozenset[str], patch: str) -> None:
    """Check that `distribution` is installed in a tested version.

    Raises:
        PatchOutdated: the installed version is not in `tested`.
    """
    found = version(distribution)
    if found not in tested:
        raise PatchOutdated(f"{patch}: tested on {distribution} {sorted(tested)}, found {found}")

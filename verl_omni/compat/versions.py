"""Version check of the patches: each refuses versions of upstream that it was not tested with."""

from importlib.metadata import version


class PatchOutdated(RuntimeError):
    """The installed version differs from the tested ones: review the patch."""


def require(distribution: str, tested: frozenset[str], patch: str) -> None:
    """Check that a tested version of `distribution` is installed.

    Raises:
        PatchOutdated: the installed version is not in `tested`.
    """
    installed = version(distribution)
    if installed not in tested:
        raise PatchOutdated(f"{patch}: tested on {distribution} {sorted(tested)}, found {installed}: review the patch")

"""Programs of Debian's packages, unpacked into a folder and not installed: installed, some would start a service."""

import shutil
import tempfile
from pathlib import Path

from e2e.cluster.errors import CommandFailed, ToolMissing
from e2e.cluster.processes import run
from e2e.cluster.tools import Say, locked

FETCH_S = 300.0


def unpack(package: str, kept: Path, note: str, say: Say, *, dependencies: bool = False) -> None:
    """Unpack a package into `kept`, unless that exists.

    Args:
        note: what to expect, for the line that is said.
        dependencies: with the packages that it needs and that are not installed here.

    Raises:
        ToolMissing: this is not Debian, or its archive does not answer.
    """
    if kept.exists():
        return
    if shutil.which("apt-get") is None or shutil.which("dpkg-deb") is None:
        raise ToolMissing(f"{package} is missing: install it (Debian: apt-get install {package})")
    kept.parent.mkdir(parents=True, exist_ok=True)
    with locked(kept.parent, say):
        if kept.exists():
            return
        say(f"fetching Debian's {package} ({note}; kept in {kept})")
        with tempfile.TemporaryDirectory(dir=kept.parent) as folder:
            try:
                packages = needed(package) if dependencies else [package]
                run(["sh", "-c", 'cd "$0" && apt-get -qq download "$@"', folder, *packages], deadline=FETCH_S)
                for archive in Path(folder).glob("*.deb"):
                    run(["dpkg-deb", "--extract", str(archive), f"{folder}/files"], deadline=FETCH_S)
            except CommandFailed as error:
                raise ToolMissing(f"Debian's {package} cannot be fetched (apt-get update?): {error}") from error
            (Path(folder) / "files").rename(kept)


def needed(package: str) -> list[str]:
    """The package, and those that it needs and that are not installed here.

    Raises:
        CommandFailed: apt does not know it.
    """
    # One line per package: 'URL' NAME_VERSION_ARCHITECTURE.deb SIZE HASH
    listed = run(["apt-get", "-qq", "--print-uris", "--no-install-recommends", "install", package], deadline=FETCH_S)
    return [line.split()[1].partition("_")[0] for line in listed.splitlines() if line.startswith("'")]

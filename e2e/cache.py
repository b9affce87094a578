"""`python -m e2e.cache [--clean]`: what tests keep on the disk outside the tree, and its removal."""

import argparse
import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from e2e.cluster import deadlines
from e2e.cluster.bare.provider import BareCluster
from e2e.cluster.errors import ClusterError
from e2e.cluster.kind.provider import KindCluster
from e2e.cluster.paths import SOURCES, cache
from e2e.cluster.processes import run
from e2e.cluster.tools import GO, Say, key
from e2e.turns import COMMITTED

GB = 1_000_000_000
UNUSED_FOR_S = 7 * 86400.0
BUILD = re.compile(r"[0-9a-f]{16}")
# Contents of the cache by folder name. A file with several hard links counts for the first folder.
KINDS = {
    "archives": "images as they were built",
    "images": "images as nodes take them; shares its files with the built ones",
    GO: "sources and build cache of Go; removed when the programs are built",
    "podman": "kind's node image, and nodes of a running cluster of kind",
    "prometheus": "Prometheus",
    "docker-registry": "a container registry",
    "skopeo-with-libraries": "skopeo",
    "long_tests.json": "when long files of tests passed last",
}


def described(name: str) -> str:
    """What a folder of the cache holds. PURE."""
    if name in KINDS:
        return KINDS[name]
    if BUILD.fullmatch(name):
        return "programs of clusters, of one set of versions"
    if name.startswith("uv-"):
        return "uv"
    if name == COMMITTED.name:
        return "when tests on whole clusters passed last"
    return "a running cluster" if re.fullmatch(r"omni\d+|kind\d*", name) else "other"


def sizes(folders: Iterable[Path]) -> dict[Path, int]:
    """Bytes that folders take on the disk; of files that several of them share, the first pays."""
    paths = [str(path) for path in folders]
    if not paths:
        return {}
    lines = run(["du", "--summarize", "--one-file-system", "--block-size=1", *paths], deadline=deadlines.IMPORT_IMAGE)
    return {Path(path): int(size) for size, path in (line.split("\t") for line in lines.splitlines())}


def report(base: Path, venv: Path) -> str:
    """A line for each folder of the cache, and the sum."""
    order = [base / name for name in KINDS if (base / name).exists()]
    unlisted = sorted(path for path in base.glob("*") if path not in order) if base.exists() else []
    bytes_by_path = sizes([*order, *unlisted, *([venv] if venv.exists() else [])])
    cache_bytes = sum(size for path, size in bytes_by_path.items() if path != venv)
    lines = [
        f"{size / GB:6.1f} GB  {path}  ({described(path.name)})" for path, size in bytes_by_path.items() if path != venv
    ]
    lines.append(f"{cache_bytes / GB:6.1f} GB  in all")
    if venv in bytes_by_path:
        lines.append(f"{bytes_by_path[venv] / GB:6.1f} GB  {venv}  (not of the cache; shares its files with uv's)")
    return "\n".join(lines)


def outdated(base: Path, used: set[str], now: float) -> list[Path]:
    """Programs of versions that this tree does not use and nothing has built for a week."""
    builds = [path for path in base.glob("*") if BUILD.fullmatch(path.name) and path.name not in used]
    return [path for path in builds if now - path.stat().st_mtime > UNUSED_FOR_S]


def prune(base: Path, say: Say, now: Callable[[], float] = time.time) -> None:
    """Remove what is not needed when the programs are built: Go's caches, and programs of earlier versions."""
    used = {key(path.parent) for path in SOURCES.rglob("go.mod")}
    for path in [base / GO, *outdated(base, used, now())]:
        if path.exists():
            say(f"removing {path}: {described(path.name)}")
            shutil.rmtree(path)


def clean(base: Path, nodes: Sequence[str], say: Say) -> None:
    """Remove the whole cache.

    Args:
        nodes: nodes of the running cluster.

    Raises:
        ClusterError: a cluster is running and uses the cache.
    """
    if nodes:
        raise ClusterError(f"the nodes {', '.join(nodes)} use the cache: make cluster-down")
    say(f"removing {base}")
    shutil.rmtree(base)


def main() -> int:
    """Print or remove the cache; the exit status."""
    parser = argparse.ArgumentParser(prog="python -m e2e.cache")
    parser.add_argument("--clean", action="store_true", help="remove the whole cache")
    chosen = parser.parse_args()

    def say(text: str) -> None:
        sys.stdout.write(text + "\n")

    try:
        if chosen.clean:
            clean(cache(), [*BareCluster().nodes(), *KindCluster(say).nodes()], say)
        else:
            say(report(cache(), Path(sys.prefix)))
    except ClusterError as error:
        sys.stderr.write(f"{error}\n")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Resolve the locked sets, with hashes and without the address of any index; or check that they are fresh."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from collections.abc import Sequence
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
OVERRIDES = HERE / "overrides.in"
MARK = "# pyproject.toml: "
# The extras of each set. The first set has all packages, and the others the same versions.
SETS = {
    "all.txt": ("operator", "train", "build", "dev"),
    "operator.txt": ("operator",),
    "rollout.txt": ("operator", "train", "build"),
}


def fingerprint(extras: Sequence[str]) -> str:
    """Hash of what a set is resolved from."""
    table = tomllib.loads(PROJECT.read_text())
    project = table["project"]
    chosen = [project["requires-python"], project["dependencies"], table["build-system"], OVERRIDES.read_text()]
    chosen += [project["optional-dependencies"][extra] for extra in extras]
    return hashlib.sha256(json.dumps(chosen, sort_keys=True).encode()).hexdigest()[:16]


def resolve(uv: str, name: str, extras: Sequence[str]) -> None:
    """Write one set, keeping the versions that are locked already."""
    target, first = HERE / name, HERE / next(iter(SETS))
    options = [argument for extra in extras for argument in ("--extra", extra)]
    if target != first:
        options += ["--constraint", str(first)]
    subprocess.run(
        [
            uv,
            "pip",
            "compile",
            str(PROJECT),
            *options,
            "--override",
            str(OVERRIDES),
            "--python-version",
            "3.11",
            "--generate-hashes",
            "--no-emit-index-url",
            "--no-header",
            "--no-annotate",
            "--quiet",
            "--output-file",
            str(target),
        ],
        check=True,
    )
    target.write_text(f"{MARK}{fingerprint(extras)}\n{target.read_text()}")


def stale(folder: Path = HERE) -> list[str]:
    """Sets that were resolved from something else, name an address, or have other versions than pins or the first set.

    Without a pin, uv would silently take verl 0.4.1, the last without a limit on transformers.
    """
    texts = {name: (folder / name).read_text() if (folder / name).exists() else "" for name in SETS}
    tested = versions(next(iter(texts.values())))
    return [
        name
        for name, text in texts.items()
        if not text.startswith(f"{MARK}{fingerprint(SETS[name])}\n")
        or "://" in text
        or not pins(SETS[name]) <= versions(text) <= tested
    ]


def pins(extras: Sequence[str]) -> set[str]:
    """The requirements that allow one version, as `name==version`."""
    optional = tomllib.loads(PROJECT.read_text())["project"]["optional-dependencies"]
    return {requirement for extra in extras for requirement in optional[extra] if "==" in requirement}


def versions(text: str) -> set[str]:
    """The packages of a set with their versions, as `name==version`."""
    return {line.split()[0] for line in text.splitlines() if "==" in line}


def main() -> int:
    """Resolve, or check with `--check`; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--uv", default="uv")
    chosen = parser.parse_args()
    if not chosen.check:
        for name, extras in SETS.items():
            resolve(chosen.uv, name, extras)
    if found := stale():
        print(f"stale: {', '.join(found)}; run `make lock`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

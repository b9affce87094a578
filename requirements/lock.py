"""Resolve the locked sets, with hashes and without the address of any index; or check that they are fresh."""

from __future__ import annotations

import argparse
import hashlib
import json
import subprocess
import sys
import tomllib
from pathlib import Path

HERE = Path(__file__).resolve().parent
PROJECT = HERE.parent / "pyproject.toml"
MARK = "# pyproject.toml: "
SETS = {"all.txt": ["--all-extras"], "operator.txt": ["--extra", "operator"]}


def fingerprint() -> str:
    """Hash of what the sets are resolved from."""
    table = tomllib.loads(PROJECT.read_text())
    chosen = {key: table["project"].get(key) for key in ("dependencies", "optional-dependencies", "requires-python")}
    return hashlib.sha256(json.dumps([chosen, table["build-system"]], sort_keys=True).encode()).hexdigest()[:16]


def resolve(uv: str, name: str, options: list[str]) -> None:
    """Write one set, keeping the versions that are locked already."""
    target = HERE / name
    subprocess.run(
        [
            uv, "pip", "compile", str(PROJECT), *options, "--python-version", "3.11", "--generate-hashes",
            "--no-emit-index-url", "--no-header", "--no-annotate", "--quiet", "--output-file", str(target),
        ],
        check=True,
    )  # fmt: skip
    target.write_text(f"{MARK}{fingerprint()}\n{target.read_text()}")


def stale() -> list[str]:
    """Sets that were resolved from something else, or name an address."""
    found = []
    for name in SETS:
        text = (HERE / name).read_text()
        if not text.startswith(f"{MARK}{fingerprint()}\n") or "://" in text:
            found.append(name)
    return found


def main() -> int:
    """Resolve, or check with `--check`; the exit status."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true")
    parser.add_argument("--uv", default="uv")
    chosen = parser.parse_args()
    if not chosen.check:
        for name, options in SETS.items():
            resolve(chosen.uv, name, options)
    if found := stale():
        print(f"stale: {', '.join(found)}; run `make lock`", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())

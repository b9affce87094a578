"""PURE: software bills of materials, in CycloneDX's JSON, for the packages that a release installs from locked sets.

A bill lists the Python packages of a set with versions, hashes and the marker under which they are installed. It leaves
out what an image's base contains (Debian's packages, Python itself). The same set gives the same bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

FORMAT = "CycloneDX"
SPECIFICATION = "1.6"
PACKAGE = re.compile(
    r"^(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?:\[[^\]]*\])?==(?P<version>[^\s;\\]+)(?:\s*;\s*(?P<marker>[^\\]+))?"
)
HASH = re.compile(r"--hash=sha256:([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class Package:
    """A locked package; `hashes` has one hash for each of its files, and an installation uses one file."""

    name: str
    version: str
    marker: str
    hashes: tuple[str, ...]


def read_locked(text: str) -> Iterator[Package]:
    """The packages of a locked set.

    Raises:
        ValueError: a line is neither a package with its version, nor a comment, nor a hash; or a package has no hash.
    """
    for block in re.split(r"\n(?=\S)", "\n".join(line for line in text.splitlines() if not line.startswith("#"))):
        if not block.strip():
            continue
        found = PACKAGE.match(block.lstrip())
        hashes = tuple(HASH.findall(block))
        if found is None or not hashes:
            raise ValueError(f"not a locked package with hashes: {block.splitlines()[0]!r}")
        yield Package(found["name"], found["version"], (found["marker"] or "").strip(), hashes)


def bill(name: str, version: str, locked: str) -> str:
    """The bill of a component that installs a locked set.

    Args:
        locked: text of the set, as `uv pip compile --generate-hashes` writes it.
    """
    packages = sorted(read_locked(locked), key=lambda each: (each.name, each.version))
    document = {
        "bomFormat": FORMAT,
        "specVersion": SPECIFICATION,
        "version": 1,
        "metadata": {"component": {"type": "application", "name": name, "version": version, "bom-ref": name}},
        "components": [_component(each) for each in packages],
    }
    return json.dumps(document, indent=1) + "\n"


def _component(package: Package) -> dict[str, object]:
    purl = f"pkg:pypi/{re.sub(r'[-_.]+', '-', package.name).lower()}@{package.version}"
    found: dict[str, object] = {
        "type": "library",
        "bom-ref": purl,
        "name": package.name,
        "version": package.version,
        "purl": purl,
        "hashes": [{"alg": "SHA-256", "content": digest} for digest in package.hashes],
    }
    if package.marker:
        found["properties"] = [{"name": "python:marker", "value": package.marker}]
    return found

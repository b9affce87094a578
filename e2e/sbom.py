"""Software bills of materials, in CycloneDX's JSON, for the packages that a release installs from locked sets.

uv writes them. A bill lists the Python packages of a set with their files, hashes and dependencies, as Linux installs
them. It leaves out what an image's base contains (Debian's packages, Python itself).
"""

import json
import re
import sys
import tempfile
from pathlib import Path

from e2e.cluster.errors import ToolMissing
from e2e.cluster.paths import cache
from e2e.cluster.processes import run

RESOLVE_S = 300.0
PACKAGE = re.compile(r"^[A-Za-z0-9][^\s\\]*==[^\\\n]+", re.MULTILINE)


def project(name: str, version: str, locked: str) -> str:
    """PURE: a pyproject.toml that requires the packages of a locked set, whatever they say of each other's versions."""
    pins = json.dumps([pin.strip() for pin in PACKAGE.findall(locked)])
    python = f"=={sys.version_info.major}.{sys.version_info.minor}.*"
    return f"""\
[project]
name = {json.dumps(name)}
version = {json.dumps(version)}
requires-python = "{python}"
dependencies = {pins}

[tool.uv]
environments = ["sys_platform == 'linux'"]
override-dependencies = {pins}
"""


def write_bill(name: str, version: str, locked: str, target: Path) -> None:
    """Write the bill of a component that installs a locked set.

    Args:
        locked: text of the set, as `uv pip compile` writes it.

    Raises:
        ToolMissing: there is no uv, which `make setup` installs.
        CommandFailed: a package of the set cannot be had.
    """
    programs = sorted(cache().glob("uv-*/bin/uv"))
    if not programs:
        raise ToolMissing("uv is missing: run `make setup`")
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "pyproject.toml").write_text(project(name, version, locked), encoding="utf-8")
        export = [str(programs[-1]), "export", f"--project={folder}", f"--python={sys.executable}", "--quiet"]
        run([*export, "--format=cyclonedx1.5", f"--output-file={target.resolve()}"], deadline=RESOLVE_S)

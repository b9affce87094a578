"""A base image where none can be pulled: Debian by debootstrap, and the Python that runs this program.

Debian's own Python would do, but its version is not the one that the locked set was resolved for.
"""

import hashlib
import re
import shutil
import sys
import tempfile
from pathlib import Path

from e2e.cluster.errors import ToolMissing
from e2e.cluster.processes import run
from e2e.cluster.tools import Say

# Libraries that Python's extension modules link to, and the other packages of Python's slim image.
LIBRARIES = (
    "ca-certificates",
    "libbz2-1.0",
    "libexpat1",
    "libffi8",
    "liblzma5",
    "libncursesw6",
    "libreadline8",
    "libsqlite3-0",
    "libssl3",
    "libuuid1",
    "netbase",
    "tzdata",
    "zlib1g",
)
MODULES = "import bz2, ctypes, lzma, readline, sqlite3, ssl, uuid, zlib"
UNUSED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
RELEASE = Path("/etc/os-release")
BOOTSTRAP_S = 900.0
FORM = "1"  # changes with what this module makes of the same inputs


def version() -> str:
    """Major and minor version of this Python, such as 3.11."""
    return "{}.{}".format(*sys.version_info[:2])


def suite(release: str) -> str:
    """The Debian release of this machine, whose libraries its Python is linked to.

    Raises:
        ToolMissing: it is another system.
    """
    fields = dict(re.findall(r"^(\w+)=\"?([^\"\n]*)", release, re.MULTILINE))
    if fields.get("ID") != "debian" or not fields.get("VERSION_CODENAME"):
        raise ToolMissing("a base image is made from Debian: on another system give one (--base), or use Docker")
    return fields["VERSION_CODENAME"]


def name() -> str:
    """The base's name, with a hash of its content."""
    made_of = [FORM, sys.version, suite(RELEASE.read_text(encoding="utf-8")), *LIBRARIES]
    return f"localhost/python:{version()}-slim-{hashlib.sha256(repr(made_of).encode()).hexdigest()[:12]}"


def write_archive(target: Path, say: Say) -> None:
    """Write the base's files as one tar archive.

    Raises:
        ToolMissing: this Python belongs to the system, so it cannot be copied alone.
        CommandFailed: Debian's archive did not answer, or the Python does not work in there.
    """
    prefix = Path(sys.base_prefix)
    if prefix == Path("/usr"):
        raise ToolMissing(
            "the system's own Python cannot be copied into a base image: give one (--base), or use Docker"
        )
    with tempfile.TemporaryDirectory(dir=target.parent) as folder:
        root = Path(folder) / "root"
        release = suite(RELEASE.read_text(encoding="utf-8"))
        say(f"making a base image: Debian {release} and Python {version()} (a minute)")
        include = f"--include={','.join(LIBRARIES)}"
        run(["debootstrap", "--variant=minbase", include, release, str(root)], deadline=BOOTSTRAP_S)
        copy_python(prefix, root / "usr" / "local")
        run(["chroot", str(root), "ldconfig"])
        # Its own pip: packages of the machine's Python stay where they are.
        run(["chroot", str(root), "python3", "-m", "ensurepip"], deadline=BOOTSTRAP_S)
        (root / "usr/local/bin/pip").symlink_to("pip3")
        run(["chroot", str(root), "python3", "-c", MODULES])
        for unused in UNUSED:
            shutil.rmtree(root / unused)
            (root / unused).mkdir()
        run(["tar", "--create", f"--file={target}", f"--directory={root}", "."], deadline=BOOTSTRAP_S)


def copy_python(prefix: Path, target: Path) -> None:
    """Copy an interpreter and its library; no package, test or bytecode."""
    library = f"lib/python{version()}"
    (target / "bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(prefix / "bin" / f"python{version()}", target / "bin")
    for link in ("python3", "python"):
        (target / "bin" / link).unlink(missing_ok=True)
        (target / "bin" / link).symlink_to(f"python{version()}")
    left_out = shutil.ignore_patterns("__pycache__", "site-packages", "test", "tests", "*.a", "idlelib", "turtledemo")
    shutil.copytree(prefix / library, target / library, ignore=left_out, symlinks=True)
    (target / library / "site-packages").mkdir()
    shutil.copytree(prefix / "include", target / "include", dirs_exist_ok=True)
    for shared in (prefix / "lib").glob("libpython3*.so*"):
        shutil.copy(shared, target / "lib", follow_symlinks=False)

"""A release: one version everywhere, the changelog, wheel, chart, images, bills of materials and checksums.

It pushes nothing.

PYTHONPATH=operator:. python -m e2e.release VERSION [--images NAME ...] [--out dist]
"""

from __future__ import annotations

import argparse
import hashlib
import json
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path

from e2e import sbom
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache
from e2e.cluster.processes import run
from e2e.helm import helm
from e2e.images.build import build
from e2e.images.builders import choose
from e2e.images.catalog import OPERATOR, ROLLOUT, ROLLOUT_ASCEND, ROLLOUT_CPU, ROOT, Image

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
# The lines that name the version: file -> patterns with the version as the group `version`.
PLACES = {
    "pyproject.toml": (re.compile(r'^version = "(?P<version>[^"]*)"$', re.MULTILINE),),
    "charts/omni-operator/Chart.yaml": (
        re.compile(r"^version: (?P<version>\S+)$", re.MULTILINE),
        re.compile(r'^appVersion: "(?P<version>[^"]*)"$', re.MULTILINE),
    ),
}
CHECKSUMS, DIGESTS = "SHA256SUMS", "IMAGE_DIGESTS"
# Locked set that each part of a release installs.
SETS = {"operator": "operator.txt", "rollout": "rollout.txt"}
IMAGES = {image.folder: image for image in (OPERATOR, ROLLOUT_CPU, ROLLOUT, ROLLOUT_ASCEND)}
DEFAULT_IMAGES = ("operator", "rollout-cpu", "rollout")
STEP_S = 300.0


class NotReleasable(ValueError):
    """The working tree cannot be released as this version; the message says why."""


def read_versions(root: Path) -> dict[str, str]:
    """The version that each line of `PLACES` names, by file and the line's first word.

    Raises:
        NotReleasable: a line is missing.
    """
    found = {}
    for name, patterns in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        for pattern in patterns:
            line = pattern.search(text)
            if line is None:
                raise NotReleasable(f"{name} has no line {pattern.pattern}")
            found[f"{name}: {line[0].split()[0].rstrip(':')}"] = line["version"]
    return found


def set_version(root: Path, version: str) -> None:
    """Write the version into every line of `PLACES`.

    Raises:
        NotReleasable: a line is missing; nothing is written.
    """
    read_versions(root)
    for name, patterns in PLACES.items():
        path = root / name
        text = path.read_text(encoding="utf-8")
        for pattern in patterns:
            text = pattern.sub(lambda line: line[0].replace(line["version"], version), text)
        path.write_text(text, encoding="utf-8")


def check_releasable(root: Path, version: str) -> None:
    """
    Raises:
        NotReleasable: the version is malformed, older than the present one or released, or nothing has changed.
    """
    if VERSION.fullmatch(version) is None:
        raise NotReleasable(f"{version!r} is not a version: three numbers, such as 1.4.0, for Python and Helm alike")
    present = read_versions(root)["pyproject.toml: version"]
    if _numbers(version) < _numbers(present):
        raise NotReleasable(f"{version} is older than {present}, the version of pyproject.toml")
    if re.search(rf"^# .* {re.escape(version)} \(", (root / "CHANGELOG.md").read_text(encoding="utf-8"), re.MULTILINE):
        raise NotReleasable(f"CHANGELOG.md has {version} already: choose the next version")
    if not list((root / "changelog.d").glob("*.md")):
        raise NotReleasable("changelog.d has no fragment: no change that users would notice")


def write_changelog(root: Path, version: str, day: date) -> None:
    """Move the fragments of changelog.d into a section of CHANGELOG.md."""
    towncrier = [sys.executable, "-m", "towncrier", "build", "--yes", "--dir", str(root)]
    run([*towncrier, "--version", version, "--date", day.isoformat()], deadline=STEP_S)


def build_wheel(root: Path, folder: Path) -> None:
    """Build the wheel; the same sources give the same bytes."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={folder.resolve()}"]
    run(["env", f"--chdir={root}", *hatchling], deadline=STEP_S)


def package_chart(program: Path, root: Path, folder: Path) -> None:
    """Package the chart and copy the custom resource definition, for those who install it without the chart."""
    run([str(program), "lint", "--strict", str(root / "charts/omni-operator")], deadline=STEP_S)
    run([str(program), "package", str(root / "charts/omni-operator"), f"--destination={folder}"], deadline=STEP_S)
    for path in sorted((root / "crds").glob("*.yaml")):
        shutil.copy(path, folder / path.name)


def export_images(images: Sequence[Image], version: str, root: Path, folder: Path) -> None:
    """Build images and write each as an archive, for `skopeo copy` or `docker load`.

    Raises:
        ToolMissing: this machine cannot build images.
        BuildFailed: a build failed.
    """
    kept = cache() / "archives"
    builder = choose(kept / "buildah", print)
    commit = _commit(root)
    digests = []
    for image in images:
        built = build(image, builder, kept, print, root=root)
        name = image.repository.rpartition("/")[2]
        archive = folder / f"{name}-{version}.tar"
        builder.export(built.name, archive, labels(version, commit))
        if digest := image_digest(archive):
            digests.append(f"{digest}  {name}:{version}\n")
    (folder / DIGESTS).write_text("".join(digests), encoding="utf-8")


def write_bills(version: str, root: Path, folder: Path) -> None:
    """Write a bill of materials for each locked set that images install."""
    for name, locked in SETS.items():
        text = (root / "requirements" / locked).read_text(encoding="utf-8")
        made = sbom.bill(f"omni-{name}", version, text)
        (folder / f"omni-{name}-{version}.cdx.json").write_text(made, encoding="utf-8")


def image_digest(archive: Path) -> str | None:
    """The digest by which a registry will name the image of an OCI archive; None for Docker's format without one."""
    with tarfile.open(archive) as packed:
        try:
            index = packed.extractfile("index.json")
        except KeyError:
            return None
        assert index is not None
        (manifest,) = json.load(index)["manifests"]
        return str(manifest["digest"])


def labels(version: str, commit: str) -> dict[str, str]:
    """Labels of released images, by the names of the OCI's image specification."""
    prefix = "org.opencontainers.image"
    return {f"{prefix}.version": version, **({f"{prefix}.revision": commit} if commit else {})}


def write_checksums(folder: Path) -> None:
    """Write the SHA-256 of every file, in the format of `sha256sum --check`."""
    lines = []
    for path in sorted(folder.iterdir()):
        if path.name != CHECKSUMS:
            with path.open("rb") as file:
                lines.append(f"{hashlib.file_digest(file, 'sha256').hexdigest()}  {path.name}\n")
    (folder / CHECKSUMS).write_text("".join(lines), encoding="utf-8")


def release(version: str, root: Path, folder: Path, images: Sequence[Image], day: date, program: Path) -> None:
    """Set the version, write the changelog, and build everything into a new folder.

    Raises:
        NotReleasable: see `check_releasable`; or the folder exists. Nothing is changed.
        CommandFailed: a step failed.
    """
    check_releasable(root, version)
    if folder.exists():
        raise NotReleasable(f"{folder} exists: remove it, or name another folder with --out")
    set_version(root, version)
    write_changelog(root, version, day)
    folder.mkdir(parents=True)
    build_wheel(root, folder)
    package_chart(program, root, folder)
    write_bills(version, root, folder)
    if images:  # else no builder is needed, nor the packages that it is made of
        export_images(images, version, root, folder)
    write_checksums(folder)


def _commit(root: Path) -> str:
    """The commit of a checkout; empty where there is none."""
    found = subprocess.run(["git", "rev-parse", "HEAD"], cwd=root, capture_output=True, text=True, check=False)
    return found.stdout.strip() if found.returncode == 0 else ""


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a release. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python -m e2e.release", description="Build a release; pushes nothing.")
    parser.add_argument("version", help="three numbers, such as 1.4.0")
    parser.add_argument("--images", nargs="*", default=DEFAULT_IMAGES, choices=IMAGES, metavar="NAME",
                        help=f"of {', '.join(IMAGES)}; default: {', '.join(DEFAULT_IMAGES)}")  # fmt: skip
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="a folder of the version is made in it")
    chosen = parser.parse_args(arguments)
    folder = chosen.out / chosen.version
    try:
        images = [IMAGES[name] for name in chosen.images]
        release(chosen.version, chosen.root, folder, images, datetime.now(UTC).date(), helm())
    except (ClusterError, NotReleasable) as error:
        sys.stderr.write(f"{error}\n")
        return 1
    for path in sorted(folder.iterdir()):
        sys.stdout.write(f"{path}\n")
    sys.stdout.write(f"next: read CHANGELOG.md, commit, tag v{chosen.version}; docs/release.md says how to publish\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

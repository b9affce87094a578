"""A release: one version everywhere, the changelog, its commit, wheel, chart, images, bills of materials, checksums.

It is checked on a cluster and then tagged. It pushes nothing.

PYTHONPATH=operator:. python -m e2e.release VERSION [--images NAME ...] [--out dist]
"""

import argparse
import hashlib
import json
import os
import re
import shutil
import sys
import tarfile
from collections.abc import Sequence
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from e2e import release_check, release_commit, sbom
from e2e.cluster import images as oci
from e2e.cluster.errors import ClusterError
from e2e.cluster.paths import cache
from e2e.cluster.processes import run
from e2e.helm import helm
from e2e.images.build import build
from e2e.images.builders import choose
from e2e.images.catalog import OPERATOR, ROLLOUT, ROLLOUT_ASCEND, ROLLOUT_CPU, ROOT, Image
from e2e.release_check import DIGESTS
from e2e.release_commit import NotReleasable

VERSION = re.compile(r"(0|[1-9]\d*)\.(0|[1-9]\d*)\.(0|[1-9]\d*)")
# The lines that name the version: file -> patterns with the version as the group `version`.
PLACES = {
    "pyproject.toml": (re.compile(r'^version = "(?P<version>[^"]*)"$', re.MULTILINE),),
    "charts/omni-operator/Chart.yaml": (
        re.compile(r"^version: (?P<version>\S+)$", re.MULTILINE),
        re.compile(r'^appVersion: "(?P<version>[^"]*)"$', re.MULTILINE),
    ),
}
CHECKSUMS = "SHA256SUMS"
# Media types of a chart in a registry, as Helm writes them: its Chart.yaml as JSON, and its package.
CHART_TYPES = ("application/vnd.cncf.helm.config.v1+json", "application/vnd.cncf.helm.chart.content.v1.tar+gzip")
# Locked set that each part of a release installs.
SETS = {"operator": "operator.txt", "rollout": "rollout.txt"}
IMAGES = {image.folder: image for image in (OPERATOR, ROLLOUT_CPU, ROLLOUT, ROLLOUT_ASCEND)}
DEFAULT_IMAGES = ("operator", "rollout-cpu", "rollout")
CHECKED = (OPERATOR, ROLLOUT_CPU)  # the images that a check on a cluster runs
RUN_IN_CHECK = tuple(image.repository.rpartition("/")[2] for image in CHECKED)
CHART = "omni-operator"
STEP_S = 300.0


def read_versions(root: Path) -> dict[str, str]:
    """The version that each line of `PLACES` names, by file and the line's first word.

    Raises:
        NotReleasable: a line is missing.
    """
    versions = {}
    for name, patterns in PLACES.items():
        text = (root / name).read_text(encoding="utf-8")
        for pattern in patterns:
            line = pattern.search(text)
            if line is None:
                raise NotReleasable(f"{name} has no line {pattern.pattern}")
            versions[f"{name}: {line[0].split()[0].rstrip(':')}"] = line["version"]
    return versions


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
    # It runs git where it is started.
    towncrier = ["env", f"--chdir={root}", sys.executable, "-m", "towncrier", "build", "--yes"]
    run([*towncrier, "--version", version, "--date", day.isoformat()], deadline=STEP_S)


def build_wheel(root: Path, folder: Path) -> None:
    """Build the wheel; the same sources give the same bytes."""
    hatchling = [sys.executable, "-m", "hatchling", "build", "--target=wheel", f"--directory={folder.resolve()}"]
    run(["env", f"--chdir={root}", *hatchling], deadline=STEP_S)


def package_chart(program: Path, version: str, root: Path, folder: Path) -> None:
    """Package the chart, and copy the custom resource definition for those who install it without the chart.

    The package is also written as an OCI archive, so that its digest in a registry is known before it is there.
    """
    chart = root / "charts/omni-operator"
    run([str(program), "lint", "--strict", str(chart)], deadline=STEP_S)
    run([str(program), "package", str(chart), f"--destination={folder}"], deadline=STEP_S)
    described = json.dumps(_chart_metadata(chart)).encode()
    package = (folder / f"{CHART}-{version}.tgz").read_bytes()
    archive = folder / f"{CHART}-chart-{version}.tar"
    oci.write_layout(*oci.layout(f"{CHART}:{version}", described, [package], CHART_TYPES), archive)
    add_digest(folder, f"charts/{CHART}:{version}", archive)
    for path in sorted((root / "crds").glob("*.yaml")):
        shutil.copy(path, folder / path.name)


def add_digest(folder: Path, name: str, archive: Path) -> None:
    """Add a line to the list of digests, where the archive has one."""
    if digest := image_digest(archive):
        with (folder / DIGESTS).open("a", encoding="utf-8") as listed:
            listed.write(f"{digest} {name} {archive.name}\n")


def export_images(images: Sequence[Image], version: str, root: Path, folder: Path) -> None:
    """Build images and write each as an archive, for `skopeo copy` or `docker load`.

    Raises:
        ToolMissing: this machine cannot build images.
        BuildFailed: a build failed.
    """
    kept = cache() / "archives"
    builder = choose(kept / "buildah", print)
    commit = release_commit.head(root)
    for image in images:
        built = build(image, builder, kept, print, root=root)
        name = image.repository.rpartition("/")[2]
        archive = folder / f"{name}-{version}.tar"
        builder.export(built.name, archive, labels(version, commit))
        add_digest(folder, f"{name}:{version}", archive)


def write_bills(version: str, root: Path, folder: Path) -> None:
    """Write a bill of materials for each locked set that images install."""
    for name, locked in SETS.items():
        text = (root / "requirements" / locked).read_text(encoding="utf-8")
        sbom.write_bill(f"omni-{name}", version, text, folder / f"omni-{name}-{version}.cdx.json")


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
    """Set the version, write the changelog, commit both in a git checkout, and build everything into a new folder.

    Raises:
        NotReleasable: see `check_releasable`; or the folder exists. Nothing is changed.
        CommandFailed: a step failed.
    """
    check_releasable(root, version)
    if folder.exists():
        raise NotReleasable(f"{folder} exists: remove it, or name another folder with --out")
    set_version(root, version)
    write_changelog(root, version, day)
    if release_commit.head(root):  # before the images are built, whose labels name the commit
        release_commit.commit(root, version)
    folder.mkdir(parents=True)
    build_wheel(root, folder)
    package_chart(program, version, root, folder)
    write_bills(version, root, folder)
    if images:  # else no builder is needed, nor the packages that it is made of
        export_images(images, version, root, folder)
    write_checksums(folder)


def release_before(version: str, out: Path) -> release_check.Files | None:
    """The newest earlier release in a folder of releases that has the images of a check."""
    earlier = [
        release_check.Files(path.name, path)
        for path in out.glob("*")
        if VERSION.fullmatch(path.name) and _numbers(path.name) < _numbers(version) and (path / DIGESTS).exists()
    ]
    complete = [
        files for files in earlier if {f"{name}:{files.version}" for name in RUN_IN_CHECK} <= {*files.digests()}
    ]
    return max(complete, key=lambda files: _numbers(files.version), default=None)


def _chart_metadata(chart: Path) -> dict[str, Any]:
    """The chart's own description of itself."""
    metadata: dict[str, Any] = YAML(typ="safe").load((chart / "Chart.yaml").read_text(encoding="utf-8"))
    return metadata


def _numbers(version: str) -> tuple[int, ...]:
    return tuple(int(number) for number in version.split("."))


def main(arguments: Sequence[str] | None = None) -> int:
    """Build a release. Returns the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m e2e.release", description="Build a release, check it on a cluster, and tag it; pushes nothing."
    )
    parser.add_argument("version", help="three numbers, such as 1.4.0")
    parser.add_argument(
        "--images",
        nargs="*",
        default=DEFAULT_IMAGES,
        choices=IMAGES,
        metavar="NAME",
        help=f"of {', '.join(IMAGES)}; default: {', '.join(DEFAULT_IMAGES)}",
    )
    parser.add_argument("--root", type=Path, default=ROOT, help="the checkout")
    parser.add_argument("--out", type=Path, default=Path("dist"), help="a folder of the version is made in it")
    chosen = parser.parse_args(arguments)
    folder = chosen.out / chosen.version
    images = [IMAGES[name] for name in chosen.images]
    before = release_commit.head(chosen.root)

    def say(text: str) -> None:
        sys.stdout.write(f"{text}\n")
        sys.stdout.flush()

    try:
        release_commit.check_clean(chosen.root, chosen.version)
        checked = {*CHECKED} <= {*images}
        if checked and os.geteuid() != 0:
            raise NotReleasable(
                "a release is checked on a cluster, which needs root; IMAGES=operator builds one that is not checked"
            )
        release(chosen.version, chosen.root, folder, images, datetime.now(UTC).date(), helm())
        if checked:
            files = release_check.Files(chosen.version, folder)
            release_check.check(files, release_before(chosen.version, chosen.out), say)
            release_commit.tag(chosen.root, chosen.version)
    except (ClusterError, NotReleasable, KeyboardInterrupt) as error:
        sys.stderr.write(f"{str(error) or 'interrupted'}\n")
        if release_commit.head(chosen.root) != before:
            sys.stderr.write(f"to begin again: git reset --hard {before[:12]} && rm -r {folder}\n")
        return 1
    for path in sorted(folder.iterdir()):
        say(str(path))
    tagged = f"checked, committed and tagged {release_commit.tag_name(chosen.version)}"
    needed = " and ".join(image.folder for image in CHECKED)
    committed = f"committed; not checked and not tagged, which needs the images {needed}"
    say(f"{tagged if checked else committed}. Next: read the commit; docs/contribute/testing.md says how to publish")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Builders of images: Docker where its daemon answers, else Debian's buildah, which needs root and no daemon."""

import json
import os
import re
import shutil
import subprocess
import tempfile
import threading
import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from types import MappingProxyType
from typing import Protocol

from e2e.cluster.errors import BuildFailed, CommandFailed, ToolMissing
from e2e.cluster.kind.engine import docker_answers
from e2e.cluster.layered import LayeredImage, NodeImage
from e2e.cluster.processes import environment, run
from e2e.cluster.tools import Say

from . import base, storage
from .recipe import Recipe, default_base

BUILD_S = 7200.0
ARCHIVE_S = 7200.0  # 3 minutes on a quiet machine; half an hour was too little for 11 GB next to other work
PACKAGES_S = 900.0
SAY_EVERY_S = 30.0
# Progress lines of buildah ("[1/2] STEP 3/9: RUN ...") and of Docker ("#5 [build 3/9] RUN ...").
STEP = re.compile(r"(\[\d+/\d+\] )?STEP \d+/\d+: |#\d+ \[[^\]]*\d+/\d+\] ")
PACKAGES = ("buildah", "debootstrap")
CERTIFICATES = Path("/etc/ssl/certs")
SETTINGS = {Path("/etc/pip.conf"): "/etc/pip.conf", Path("/etc/uv/uv.toml"): "/etc/uv/uv.toml"}
PIP = "[global]\ncert = /etc/ssl/certs/ca-certificates.crt\n"


class Builder(Protocol):
    """Something that builds images from Dockerfiles."""

    def base(self, dockerfile: str, say: Say) -> str:
        """Name of the base that a Dockerfile gets where none was given; made first, where it has to be."""

    def build(self, recipe: Recipe, context: Path, say: Say) -> None:
        """Build the image from its staged files."""

    def find(self, recipe: Recipe, folder: Path) -> NodeImage | None:
        """The image in a form that nodes take, if it was built and delivered; `folder` is for archives."""

    def deliver(self, recipe: Recipe, folder: Path) -> NodeImage:
        """Bring a built image into a form that nodes take."""

    def clean(self) -> None:
        """Remove what builds left that failed or were cut off."""

    def export(self, name: str, archive: Path, labels: Mapping[str, str] = MappingProxyType({})) -> None:
        """Write a built image as an archive, for a registry or another machine.

        Args:
            labels: added to the image's labels in the archive; the built image stays unchanged.
        """

    def names(self, repository: str) -> set[str]:
        """The images of a repository that are there."""

    def forget(self, repository: str, kept: str) -> None:
        """Remove the images of a repository, but one."""


class Step:
    """Says which step runs, and while a long one does, now and then for how long."""

    def __init__(self, say: Say) -> None:
        self._say = say
        self._over = threading.Event()

    def begin(self, text: str) -> None:
        self.end()
        self._over = threading.Event()
        self._say(f"  {text[:110]}")
        threading.Thread(target=self._wait, args=(self._over, time.monotonic()), daemon=True).start()

    def end(self) -> None:
        self._over.set()

    def _wait(self, over: threading.Event, begun: float) -> None:
        while not over.wait(SAY_EVERY_S):
            self._say(f"    {time.monotonic() - begun:.0f} s")


def follow(command: Sequence[str], variables: dict[str, str], deadline: float, say: Say) -> None:
    """Run a build and say each step that it begins.

    Raises:
        BuildFailed: it failed or passed its deadline; its last lines are in the message.
    """
    process = subprocess.Popen(
        command,
        env={**environment(os.environ), **proxies(), **variables},
        text=True,
        errors="replace",
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    timer = threading.Timer(deadline, process.kill)
    timer.start()
    last: deque[str] = deque(maxlen=40)
    step = Step(say)
    try:
        assert process.stdout is not None
        for line in process.stdout:
            last.append(line.rstrip())
            if STEP.match(line):
                step.begin(line.strip())
        code = process.wait()
    finally:
        step.end()
        timer.cancel()
        process.kill()
        process.wait()
    if code != 0:
        raise BuildFailed(f"{' '.join(command[:2])} ended with {code}:\n" + "\n".join(last))


def proxies() -> dict[str, str]:
    """Variables of a proxy: builds fetch packages, so these they need."""
    return {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}


class Docker:
    """Docker's own builder. A base is pulled by its daemon."""

    def base(self, dockerfile: str, say: Say) -> str:
        return default_base(dockerfile)

    def build(self, recipe: Recipe, context: Path, say: Say) -> None:
        command = ["docker", "build", "--progress=plain", f"--build-arg=BASE={recipe.base}", f"--tag={recipe.name}"]
        follow(
            [*command, f"--file={context / recipe.image.dockerfile}", str(context)],
            {"DOCKER_BUILDKIT": "1"},
            BUILD_S,
            say,
        )

    def clean(self) -> None:
        """Docker's daemon sees to it."""

    def find(self, recipe: Recipe, folder: Path) -> NodeImage | None:
        archive = recipe.archive(folder)
        return archive if archive.exists() else None

    def deliver(self, recipe: Recipe, folder: Path) -> NodeImage:
        archive = recipe.archive(folder)
        self.export(recipe.name, archive)
        return archive

    def export(self, name: str, archive: Path, labels: Mapping[str, str] = MappingProxyType({})) -> None:
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        if labels:
            options = [f"--label={label}={value}" for label, value in labels.items()]
            name, source = f"{name}-labelled", f"FROM {name}\n"
            run(["docker", "build", *options, f"--tag={name}", "-"], deadline=ARCHIVE_S, text=source)
        run(["docker", "save", f"--output={part}", name], deadline=ARCHIVE_S)
        part.rename(archive)

    def names(self, repository: str) -> set[str]:
        """See `Builder`."""
        return set(run(["docker", "image", "ls", "--format={{.Repository}}:{{.Tag}}", repository]).split())

    def forget(self, repository: str, kept: str) -> None:
        for name in self.names(repository) - {kept}:
            with suppress(CommandFailed):  # a container uses it: then it stays
                run(["docker", "image", "rm", name], deadline=ARCHIVE_S)


class Buildah:
    """Debian's buildah with separate storage in `folder`; RUN steps run in a chroot, without namespaces."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def base(self, dockerfile: str, say: Say) -> str:
        name = base.name()
        if not self._has(name):
            say(f"the Dockerfile's base is {default_base(dockerfile)}; here it is made of what this machine has")
            self._make_base(name, say)
        return name

    def build(self, recipe: Recipe, context: Path, say: Say) -> None:
        self.clean()
        command = [
            "nice",
            "-n",
            "19",
            "buildah",
            "bud",
            "--pull-never",
            "--format=docker",
            "--layers",
            f"--build-arg=BASE={recipe.base}",
            f"--tag={recipe.name}",
            f"--file={context / recipe.image.dockerfile}",
        ]
        for source, target in self._mounted().items():
            command.append(f"--volume={source}:{target}:ro")
        follow([*command, str(context)], self._variables(), BUILD_S, say)

    def clean(self) -> None:
        # A lock keeps other builds away from this storage.
        shutil.rmtree(self._temporary, ignore_errors=True)
        self._run("rm", "--all", deadline=ARCHIVE_S)

    def find(self, recipe: Recipe, folder: Path) -> NodeImage | None:
        if not self._has(recipe.name):
            return None
        described = json.loads(self._run("inspect", "--type=image", recipe.name))
        return LayeredImage(recipe.name, described["Config"], storage.layers(self._folder / "images", recipe.name))

    def deliver(self, recipe: Recipe, folder: Path) -> NodeImage:
        built = self.find(recipe, folder)
        if built is None:
            raise BuildFailed(f"buildah does not have the image {recipe.name} that it has just built")
        return built

    def export(self, name: str, archive: Path, labels: Mapping[str, str] = MappingProxyType({})) -> None:
        part = archive.with_suffix(".part")
        part.unlink(missing_ok=True)
        labelled = self._with_labels(name, labels) if labels else name
        packed = ["--format=oci", "--compression-format=zstd", "--compression-level=1"]
        self._run("push", "--quiet", *packed, labelled, f"oci-archive:{part}:{name}", deadline=ARCHIVE_S)
        if labels:
            self._run("rmi", labelled, deadline=ARCHIVE_S)
        part.rename(archive)

    def _with_labels(self, name: str, labels: Mapping[str, str]) -> str:
        """An image with the layers of another and more labels."""
        container = self._run("from", "--pull-never", name).strip()
        options = [f"--label={label}={value}" for label, value in labels.items()]
        self._run("config", *options, container)
        labelled = f"{name}-labelled"
        self._run("commit", "--quiet", "--rm", container, labelled, deadline=ARCHIVE_S)
        return labelled

    def names(self, repository: str) -> set[str]:
        """See `Builder`."""
        listed = self._run("images", "--format={{.Name}}:{{.Tag}}", "--noheading")
        return {line for line in listed.split() if line.startswith(f"{repository}:")}

    def forget(self, repository: str, kept: str) -> None:
        for name in self.names(repository) - {kept}:
            self._run("rmi", name, deadline=ARCHIVE_S)

    def _make_base(self, name: str, say: Say) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=self._folder) as folder:
            archive = Path(folder) / "base.tar"
            base.write_archive(archive, say)
            container = self._run("from", "scratch").strip()
            self._run("add", "--quiet", container, str(archive), "/", deadline=ARCHIVE_S)
            path = "PATH=/usr/local/bin:/usr/local/sbin:/usr/sbin:/usr/bin:/sbin:/bin"
            self._run("config", "--env", path, "--env", "LANG=C.UTF-8", "--cmd", "python3", container)
            self._run("commit", "--quiet", "--rm", container, name, deadline=ARCHIVE_S)

    def _has(self, name: str) -> bool:
        try:
            self._run("inspect", "--type=image", name)
        except CommandFailed:
            return False
        return True

    def _mounted(self) -> dict[Path, str]:
        """Certificates and package settings of this machine: they are there for RUN and do not stay in the image."""
        mounted = {path: target for path, target in SETTINGS.items() if path.exists()}
        if CERTIFICATES.exists():
            mounted[CERTIFICATES] = str(CERTIFICATES)
            if Path("/etc/pip.conf") not in mounted:
                settings = self._folder / "pip.conf"
                settings.write_text(PIP, encoding="utf-8")
                mounted[settings] = "/etc/pip.conf"
        return mounted

    @property
    def _temporary(self) -> Path:
        """Buildah's folder for incomplete files."""
        return self._folder / "temporary"

    def _variables(self) -> dict[str, str]:
        self._temporary.mkdir(parents=True, exist_ok=True)
        storage = self._folder / "storage.conf"
        storage.write_text(
            f'[storage]\ndriver = "overlay"\ngraphroot = "{self._folder}/images"\nrunroot = "{self._folder}/run"\n'
            # Without it the layers are on a mount of their own, and nodes cannot take them by hard links.
            '[storage.options.overlay]\nskip_mount_home = "true"\n',
            encoding="utf-8",
        )
        return {
            "CONTAINERS_STORAGE_CONF": str(storage),
            "BUILDAH_ISOLATION": "chroot",
            "TMPDIR": str(self._temporary),
        }

    def _run(self, *arguments: str, deadline: float = 60.0) -> str:
        settings = [f"{name}={value}" for name, value in self._variables().items()]
        return run(["env", *settings, "buildah", *arguments], deadline=deadline)


def choose(folder: Path, say: Say) -> Builder:
    """Docker where it answers, else buildah, installed where it is missing.

    Raises:
        ToolMissing: there is neither, and the message says what would help.
    """
    if docker_answers():
        return Docker()
    if os.geteuid() != 0:
        raise ToolMissing("images are built by Docker, whose daemon does not answer here, or as root by buildah")
    missing = [name for name in PACKAGES if shutil.which(name) is None]
    if missing and shutil.which("apt-get") is None:
        raise ToolMissing(f"images need Docker, or {' and '.join(missing)}, which there is no apt-get to install")
    if missing:
        say(f"installing Debian's packages {', '.join(missing)}")
        debian = ["env", "DEBIAN_FRONTEND=noninteractive", "apt-get"]
        try:
            run([*debian, "update", "-qq"], deadline=PACKAGES_S)
            run([*debian, "install", "-y", "-qq", "--no-install-recommends", *missing], deadline=PACKAGES_S)
        except CommandFailed as error:
            raise ToolMissing(f"{', '.join(missing)} cannot be installed: {error}") from error
    return Buildah(folder)

"""The programs of a cluster, built from Go modules once for each set of versions."""

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache as cache_results
from pathlib import Path

from . import deadlines
from .errors import BuildFailed, ToolMissing
from .paths import SOURCES, cache

FLAGS = ("-p", "1", "-trimpath", "-buildvcs=false")
KUBERNETES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubelet", "kube-proxy", "kubectl", "etcd")
STAGES = (
    "node/fast/node-initialize.yaml",
    "node/heartbeat-with-lease/node-heartbeat-with-lease.yaml",
    "pod/fast/pod-ready.yaml",
    "pod/fast/pod-complete.yaml",
    "pod/fast/pod-delete.yaml",
)
SAY_EVERY_S = 15.0
GO = "go"  # the folder of Go's own caches, below the project's

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Program:
    """A program to build.

    `module` is the folder of its go.mod below `e2e/tools`, `links` are further names it is called by, `note` says
    what to expect of a first build.
    """

    name: str
    module: str
    package: str
    links: tuple[str, ...] = ()
    note: str = "a minute"


KUBE = Program("kube", ".", "./kube", KUBERNETES, "about 2,900 packages, 5 to 20 minutes")
COREDNS = Program("coredns", ".", "./coredns", note="a minute or two")
PAUSE = Program("pause", ".", "./pause", note="seconds")
# A separate module, with the older client libraries that KubeRay was made for.
KUBERAY = Program("ray-operator", "kuberay", "github.com/ray-project/kuberay/ray-operator", note="a minute or two")
KWOK = Program("kwok", "kwok", "sigs.k8s.io/kwok/cmd/kwok", note="2 to 5 minutes")
KIND = Program("kind", "kind", "sigs.k8s.io/kind", note="seconds")
# A separate module: as a part of KUBE it would make everyone rebuild KUBE.
KUBEADM = Program("kubeadm", "kubeadm", "k8s.io/kubernetes/cmd/kubeadm", note="a minute or two")
KUEUE = Program("kueue", "kueue", "sigs.k8s.io/kueue/cmd/kueue", note="2 to 5 minutes")
S3 = Program("versitygw", "s3", "github.com/versity/versitygw/cmd/versitygw", note="a minute or two")
HEALTH = Program("health", "health", ".", note="1 to 3 minutes")
ALL = (KUBE, KWOK, PAUSE, COREDNS, KUBERAY, KIND, KUBEADM, KUEUE, S3, HEALTH)


MODULE_OF = {name: program.module for program in ALL for name in (program.name, *program.links)}


@dataclass(frozen=True, slots=True)
class Tools:
    """Built programs: one folder below `base` for each module, named after a hash of the module's sources."""

    base: Path

    def root(self, module: str = ".") -> Path:
        """The folder of a module: `bin` holds its programs, `share` the files that came with them."""
        return self.base / key(SOURCES / module)

    @property
    def bin(self) -> Path:
        """Where the programs of a node are."""
        return self.root() / "bin"

    @property
    def stages(self) -> Path:
        """kwok's rules of how fake nodes and pods come up."""
        return self.root(KWOK.module) / "share" / "kwok-stages.yaml"

    @property
    def kueue(self) -> Path:
        """Kueue's custom resources (`crd`) and its webhooks (`webhooks.yaml`)."""
        return self.root(KUEUE.module) / "share" / "kueue"

    @property
    def kuberay(self) -> Path:
        """KubeRay's kustomization: custom resources, roles and the deployment."""
        return self.root(KUBERAY.module) / "share" / "kuberay"

    def path(self, program: Program) -> Path:
        return self.root(program.module) / "bin" / program.name

    def program(self, name: str) -> str:
        """The file to run, by the name it is called by."""
        return str(self.root(MODULE_OF[name]) / "bin" / name)


def sources(folder: Path) -> list[Path]:
    """The files that determine a module's build, without the files of nested modules."""
    files = [path for path in folder.rglob("*") if path.name in {"go.mod", "go.sum"} or path.suffix == ".go"]
    inner = {path.parent for path in files if path.name == "go.mod"} - {folder}
    return sorted(path for path in files if not inner & set(path.parents))


@cache_results
def key(folder: Path) -> str:
    """Hash of a module's versions, sources and build flags."""
    digest = hashlib.sha256(" ".join(FLAGS).encode())
    for path in sources(folder):
        digest.update(path.relative_to(folder).as_posix().encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()[:16]


def version(module: str, go_mod: str) -> str:
    """The version of `module` that a go.mod requires.

    Raises:
        BuildFailed: the go.mod does not name it.
    """
    requirement = re.search(rf"^\s*(?:require )?{re.escape(module)} (v\S+)", go_mod, re.MULTILINE)
    if requirement is None:
        raise BuildFailed(f"go.mod does not require {module}")
    return requirement[1]


def stamp(kubernetes: str) -> str:
    """Linker flags that make the programs say their own version: `v1.37.2` -> minor 37."""
    base = "k8s.io/component-base/version"
    values = {"gitVersion": kubernetes, "gitMajor": "1", "gitMinor": kubernetes.split(".")[1], "gitTreeState": "clean"}
    return " ".join(["-s", "-w", *(f"-X {base}.{name}={value}" for name, value in values.items())])


def ensure(programs: Iterable[Program], say: Say = print, folder: Path | None = None) -> Tools:
    """The programs, built where they are missing. A second call touches nothing and needs no Go.

    Raises:
        ToolMissing: something has to be built and there is no `go`.
        BuildFailed: a build failed; its last lines are in the message.
    """
    tools = Tools(folder or cache())
    if missing(tools, programs):
        tools.base.mkdir(parents=True, exist_ok=True)
        with locked(tools.base, say):
            absent = missing(tools, programs)
            if absent:
                say(f"building programs takes up to 5 GB of disk in {tools.base / GO} and keeps 0.5 GB in {tools.base}")
            for program in absent:
                build(tools, program, say)
    return tools


def go_variables(base: Path) -> dict[str, str]:
    """Variables that keep Go's caches below the project's, so that they can be removed when everything is built."""
    go = base / GO
    return {"GOCACHE": str(go / "build"), "GOMODCACHE": str(go / "modules"), "GOFLAGS": "-modcacherw"}


def kuberay_files(say: Say = print, folder: Path | None = None) -> Path:
    """KubeRay's kustomization alone, whose custom resources a control plane serves without KubeRay itself.

    Raises:
        ToolMissing: it is not there yet, and there is no `go` to fetch it.
        BuildFailed: it cannot be fetched.
    """
    tools = Tools(folder or cache())
    if not tools.kuberay.exists():
        tools.base.mkdir(parents=True, exist_ok=True)
        with locked(tools.base, say):
            refuse_without_go()
            copy_kuberay(tools, SOURCES / KUBERAY.module)
    return tools.kuberay


def missing(tools: Tools, programs: Iterable[Program]) -> list[Program]:
    """Those that are not built yet; a program appears last, and in one step, so it is never half there."""
    return [program for program in programs if not tools.path(program).exists()]


@contextmanager
def locked(folder: Path, say: Say, what: str = "build") -> Iterator[None]:
    """One at a time on this machine: the folder itself is the lock, so that no file is left."""
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another {what} is running here: waiting for it")
            fcntl.flock(handle, fcntl.LOCK_EX)
        yield
    finally:
        os.close(handle)


def build(tools: Tools, program: Program, say: Say) -> None:
    """Build one program, its companions first, and put it in place."""
    refuse_without_go()
    root = tools.root(program.module)
    (root / "bin").mkdir(parents=True, exist_ok=True)
    say(f"building {program.name} (the first time {program.note}; kept in {root})")
    started = time.monotonic()
    module = SOURCES / program.module
    flags = "-s -w"
    if program in (KUBE, KUBEADM):
        flags = stamp(version("k8s.io/kubernetes", (module / "go.mod").read_text(encoding="utf-8")))
    part = root / f".{program.name}.part"
    command = ["nice", "-n", "19", "go", "build", "-v", *FLAGS, "-ldflags", flags, "-o", str(part)]
    compile_program([*command, program.package], module, program.name, go_variables(tools.base), say)
    if program is KWOK:
        write_stages(tools, module)
    if program is KUBERAY:
        copy_kuberay(tools, module)
    if program is KUEUE:
        copy_kueue(tools, module)
    for link in program.links:
        (root / "bin" / link).unlink(missing_ok=True)
        (root / "bin" / link).symlink_to(program.name)
    part.rename(root / "bin" / program.name)
    say(f"built {program.name} in {time.monotonic() - started:.0f} s")


def refuse_without_go() -> None:
    """
    Raises:
        ToolMissing: there is no `go`.
    """
    if shutil.which("go") is None:
        raise ToolMissing(
            "Go 1.26 or later is missing: it builds Kubernetes for the tests. Install it from your system"
        )


def compile_program(command: list[str], module: Path, name: str, variables: Mapping[str, str], say: Say) -> None:
    """Run `go build -v` and say now and then how many packages it has compiled."""
    process = subprocess.Popen(
        command,
        cwd=module,
        env={**os.environ, **variables, "CGO_ENABLED": "0"},
        text=True,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
    )
    timer = threading.Timer(deadlines.BUILD_PROGRAM, process.kill)
    timer.start()
    lines: list[str] = []
    started = reported = time.monotonic()
    try:
        assert process.stderr is not None
        for line in process.stderr:
            lines.append(line.rstrip())
            if time.monotonic() - reported > SAY_EVERY_S:
                reported = time.monotonic()
                say(f"  {name}: {len(lines)} packages compiled, {reported - started:.0f} s")
        code = process.wait()
    finally:
        timer.cancel()
        process.kill()
        process.wait()
    if code != 0:
        raise BuildFailed(f"go build of {name} ended with {code}:\n" + "\n".join(lines[-20:]))


def module_folder(name: str, module: Path, base: Path) -> Path:
    """Where Go keeps the source of a module that `module` requires, with its caches below `base`."""
    fetched = subprocess.run(
        ["go", "mod", "download", "-json", name],
        cwd=module,
        env={**os.environ, **go_variables(base)},
        capture_output=True,
        text=True,
        timeout=deadlines.ADDONS_READY,
        check=False,
    )
    if fetched.returncode != 0:
        raise BuildFailed(f"the source of {name} cannot be fetched: {(fetched.stderr or fetched.stdout).strip()}")
    return Path(json.loads(fetched.stdout)["Dir"])


def write_stages(tools: Tools, module: Path) -> None:
    """Write the stages of kwok's module to a file: kwok needs stages to start and has none built in."""
    folder = module_folder("sigs.k8s.io/kwok", module, tools.base) / "kustomize" / "stage"
    tools.stages.parent.mkdir(parents=True, exist_ok=True)
    tools.stages.write_text("\n---\n".join((folder / name).read_text(encoding="utf-8") for name in STAGES), "utf-8")


def copy_config(target: Path, name: str, module: Path, base: Path, files: Mapping[str, str]) -> None:
    """Files and folders of a module's `config` by their new names. Whole, or not there.

    The module's own files are read-only, copies need not be.
    """
    if target.exists():
        return
    folder = module_folder(name, module, base) / "config"
    part = target.with_name(f".{target.name}.part")
    shutil.rmtree(part, ignore_errors=True)
    part.mkdir(parents=True)
    for source, copied in files.items():
        if (folder / source).is_dir():
            shutil.copytree(folder / source, part / copied, copy_function=shutil.copyfile)
        else:
            shutil.copyfile(folder / source, part / copied)
    part.rename(target)


def copy_kuberay(tools: Tools, module: Path) -> None:
    """The kustomization of KubeRay."""
    files = {name: name for name in ("crd", "default", "manager", "rbac")}
    copy_config(tools.kuberay, "github.com/ray-project/kuberay/ray-operator", module, tools.base, files)


def copy_kueue(tools: Tools, module: Path) -> None:
    """Kueue's custom resources and webhooks."""
    files = {"components/crd/bases": "crd", "components/webhook/manifests.yaml": "webhooks.yaml"}
    copy_config(tools.kueue, "sigs.k8s.io/kueue", module, tools.base, files)

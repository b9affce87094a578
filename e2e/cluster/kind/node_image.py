"""The node image where none can be pulled: Debian, kind's own files, and the programs that other clusters use.

As kind does it in `images/base` of its module, with Debian's containerd, runc and CNI plug-ins.
"""

import hashlib
import json
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from e2e.cluster import deadlines
from e2e.cluster.bare import machine
from e2e.cluster.errors import BuildFailed, ToolMissing
from e2e.cluster.images import architecture, layer, layout, write_layout
from e2e.cluster.paths import SOURCES
from e2e.cluster.processes import run
from e2e.cluster.tools import KIND, KUBE, KUBEADM, PAUSE, Say, Tools, key, module_folder, version

from .engine import Engine

PROGRAMS = (KUBE, KUBEADM, KIND, PAUSE)
FORM = "1"  # changes with what this module makes of the same inputs
REPOSITORY = "localhost/omni-e2e/kind-node"
FILES = Path(__file__).parent / "node"
DEBIAN = "bookworm"
PACKAGES = (
    "bash",
    "ca-certificates",
    "conntrack",
    "containerd",
    "containernetworking-plugins",
    "ethtool",
    "iproute2",
    "iptables",
    "jq",
    "kmod",
    "mount",
    "nftables",
    "procps",
    "runc",
    "socat",
    "systemd",
    "systemd-sysv",
    "util-linux",
)
# What kind removes of systemd's units.
UNITS = (
    "lib/systemd/system/sysinit.target.wants/systemd-tmpfiles-setup.service",
    "lib/systemd/system/multi-user.target.wants/*",
    "etc/systemd/system/*.wants/*",
    "lib/systemd/system/local-fs.target.wants/*",
    "lib/systemd/system/sockets.target.wants/*udev*",
    "lib/systemd/system/sockets.target.wants/*initctl*",
    "lib/systemd/system/basic.target.wants/*",
)
UNUSED = ("var/cache/apt", "var/lib/apt/lists", "usr/share/doc", "usr/share/locale", "usr/share/man")
HOOK = {"path": "/kind/bin/mount-product-files.sh"}
# Imported by the image's own containerd, without its CRI, which would want a network.
IMPORT = """set -e
mount -t tmpfs none /run
echo 'disabled_plugins = ["io.containerd.grpc.v1.cri"]' >/run/config.toml
containerd --config /run/config.toml >/run/log 2>&1 &
for _ in {1..100}; do [ -S /run/containerd/containerd.sock ] && break; sleep 0.1; done
ctr --namespace=k8s.io images import --all-platforms --no-unpack --digests /images.tar
kill $!
wait $! || true
"""
ROOM = 3_000_000_000  # bytes of disk at the peak of a build


def name() -> str:
    """The image's name, with a hash of all that it is made of."""
    digest = hashlib.sha256(repr([FORM, DEBIAN, *PACKAGES, architecture()]).encode())
    for path in sorted(FILES.iterdir()):
        digest.update(path.name.encode() + b"\0" + path.read_bytes() + b"\0")
    for program in PROGRAMS:
        digest.update(key(SOURCES / program.module).encode())
    return f"{REPOSITORY}:{kubernetes()}-{digest.hexdigest()[:12]}"


def kubernetes() -> str:
    """The version of Kubernetes that is built here: v1.37.2."""
    return version("k8s.io/kubernetes", (SOURCES / KUBEADM.module / "go.mod").read_text(encoding="utf-8"))


def ensure(engine: Engine, tools: Tools, say: Say) -> str:
    """The name of the image, built unless podman has it; images of earlier versions are removed.

    Raises:
        ToolMissing: debootstrap cannot be installed, or the disk has no room.
        CommandFailed: a step failed.
    """
    wanted = name()
    listed = set(engine.run("images", "--format={{.Repository}}:{{.Tag}}", REPOSITORY).split())
    if wanted in listed:
        return wanted
    assert engine.folder is not None
    machine.install_packages(say, {"debootstrap": "debootstrap"})
    if (free := shutil.disk_usage(engine.folder).free) < ROOM:
        raise ToolMissing(f"kind's node image takes {ROOM / 1e9:g} GB while it is built; {free / 1e9:.1f} GB are free")
    say("building kind's node image (1 to 3 minutes, 0.7 GB; once for these versions)")
    with tempfile.TemporaryDirectory(prefix="node-image-", dir=engine.folder) as folder:
        root = Path(folder) / "root"
        steps = ["nice", "-n", "19", "debootstrap", "--variant=minbase", f"--include={','.join(PACKAGES)}"]
        run([*steps, DEBIAN, str(root)], deadline=deadlines.INSTALL_PACKAGES)
        add_kind(root, module_folder("sigs.k8s.io/kind", SOURCES / KIND.module, tools.base) / "images/base/files")
        add_kubernetes(root, tools)
        import_images(root, tools)
        settings = [
            'ENTRYPOINT ["/usr/local/bin/entrypoint","/sbin/init"]',
            "STOPSIGNAL SIGRTMIN+3",
            "ENV container=podman",
        ]
        say("  giving it to podman")
        pack(root, engine.command("import", "--quiet", *(f"--change={setting}" for setting in settings), "-", wanted))
    for old in listed:
        engine.run("rmi", "--force", old, deadline=deadlines.IMPORT_IMAGE)
    return wanted


def add_kind(root: Path, files: Path) -> None:
    """Kind's files, with settings for a machine that does not let OOM scores be lowered."""
    shutil.copytree(files, root, dirs_exist_ok=True)
    for folder in ("usr/local/bin", "kind/bin"):
        for path in (root / folder).iterdir():
            path.chmod(0o755)
    for pattern in UNITS:
        for path in root.glob(pattern):
            path.unlink()
    with (root / "etc/systemd/journald.conf").open("a", encoding="utf-8") as journald:
        journald.write("ReadKMsg=no\n")
    for folder in ("opt/cni", "etc/kubernetes/manifests", "kind/manifests"):
        (root / folder).mkdir(parents=True, exist_ok=True)
    (root / "opt/cni/bin").symlink_to("/usr/lib/cni")
    for program in ("containerd", "ctr", "containerd-shim-runc-v2"):
        (root / "usr/local/bin" / program).symlink_to(f"/usr/bin/{program}")
    spec: dict[str, Any] = json.loads(run(["chroot", str(root), "ctr", "oci", "spec"]))
    spec.setdefault("hooks", {}).setdefault("createContainer", []).append(HOOK)
    spec["process"].pop("rlimits", None)
    (root / "etc/containerd/cri-base.json").write_text(json.dumps(spec), encoding="utf-8")
    settings = root / "etc/containerd/config.toml"
    text = settings.read_text(encoding="utf-8")
    if "restrict_oom_score_adj = false" not in text:
        raise BuildFailed("kind's settings of containerd do not have restrict_oom_score_adj any more")
    settings.write_text(text.replace("restrict_oom_score_adj = false", "restrict_oom_score_adj = true"), "utf-8")


def add_kubernetes(root: Path, tools: Tools) -> None:
    """Kubelet, kubeadm and kubectl, and a network and storage in place of kind's."""
    shutil.copy2(tools.program("kube"), root / "usr/bin/kube")
    shutil.copy2(tools.program("kubeadm"), root / "usr/bin/kubeadm")
    for program in ("kubelet", "kubectl"):
        (root / "usr/bin" / program).symlink_to("kube")
    (root / "kind/version").write_text(kubernetes(), encoding="utf-8")
    for source, target in (
        ("default-cni.yaml", "kind/manifests"),
        ("default-storage.yaml", "kind/manifests"),
        ("cni.json", "kind"),
        ("pod-network.sh", "kind/bin"),
        ("crictl", "usr/local/bin"),
        ("pod-network.service", "etc/systemd/system"),
    ):
        shutil.copy2(FILES / source, root / target)
    systemctl = ["chroot", str(root), "systemctl", "--quiet"]
    run([*systemctl, "enable", "kubelet", "containerd", "undo-mount-hacks", "pod-network"])
    run([*systemctl, "mask", "systemd-binfmt"])
    for unused in UNUSED:
        shutil.rmtree(root / unused, ignore_errors=True)
        (root / unused).mkdir()


def import_images(root: Path, tools: Tools) -> None:
    """Give the image's containerd the images of the control plane, which hold the programs that are built here.

    CoreDNS is left out: the cluster gets the one of the other clusters.
    """
    pause = re.search(r'sandbox_image = "(.+)"', (root / "etc/containerd/config.toml").read_text(encoding="utf-8"))
    if pause is None:
        raise BuildFailed("kind's settings of containerd name no sandbox_image")
    listed = run([tools.program("kubeadm"), "config", "images", "list", f"--kubernetes-version={kubernetes()}"])
    names = [name for name in dict.fromkeys([*listed.split(), pause[1]]) if program_of(name) != "coredns"]
    write_images(names, root, tools, root / "images.tar")
    inside = ["unshare", "--mount", "--pid", "--fork", "--kill-child", f"--mount-proc={root / 'proc'}"]
    run([*inside, "chroot", str(root), "bash", "-c", IMPORT], deadline=deadlines.IMPORT_IMAGE)
    (root / "images.tar").unlink()


def program_of(name: str) -> str:
    """The last part of an image's name: `etcd` of `registry.k8s.io/etcd:3.6.5-0`. PURE."""
    return name.rpartition("/")[2].partition(":")[0]


def write_images(names: Iterable[str], root: Path, tools: Tools, target: Path) -> None:
    """Write images of these names as one archive, because the Kubernetes and etcd images share a layer."""
    links = {f"usr/local/bin/{link}": "kube" for link in KUBE.links}
    kube = layer({"usr/local/bin/kube": Path(tools.program("kube")).read_bytes()}, links)
    stored: dict[str, bytes] = {}
    manifests = []
    for name in names:
        program = program_of(name)
        if program == "pause":
            layers = [layer({"pause": Path(tools.program("pause")).read_bytes()})]
            run_as = {"Entrypoint": ["/pause"]}
        else:
            layers = [kube, iptables(root)] if program == "kube-proxy" else [kube]
            run_as = {}
        described = {
            "architecture": architecture(),
            "os": "linux",
            "config": {"Env": ["PATH=/usr/local/bin:/usr/sbin:/usr/bin"], "WorkingDir": "/", **run_as},
            "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(data).hexdigest()}" for data in layers]},
        }
        blobs, index = layout(name, json.dumps(described).encode(), layers)
        stored |= blobs
        manifests += index["manifests"]
    write_layout(stored, {"schemaVersion": 2, "manifests": manifests}, target)


def iptables(root: Path) -> bytes:
    """A layer with the iptables of the node's Debian, and the libraries that it loads."""
    programs = [root / "usr/sbin/xtables-nft-multi", *sorted(root.glob("usr/lib/*/xtables/*.so"))]
    inside = [f"/{path.relative_to(root)}" for path in programs]
    linked = run(["chroot", str(root), "ldd", *inside])
    libraries = sorted({f"/{match.lstrip('/')}" for match in re.findall(r"(/\S+) \(0x", linked)})
    files = {path.lstrip("/"): (root / path.lstrip("/")).read_bytes() for path in [*inside, *libraries]}
    names = ("iptables", "iptables-save", "iptables-restore")
    both = [link for name in names for link in (name, name.replace("ip", "ip6", 1))]
    return layer(files, {f"usr/sbin/{name}": "xtables-nft-multi" for name in both})


def pack(root: Path, command: Sequence[str]) -> None:
    """Give all files of a folder as an archive to a program.

    Raises:
        BuildFailed: one of the two failed.
    """
    tar = ["tar", "--create", "--numeric-owner", f"--directory={root}", "."]
    with subprocess.Popen(tar, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as packing:
        done = subprocess.run(
            command, stdin=packing.stdout, capture_output=True, text=True, timeout=deadlines.IMPORT_IMAGE, check=False
        )
    if packing.returncode or done.returncode:
        raise BuildFailed(f"podman takes no node image: {done.stderr.strip()[-1000:]}")

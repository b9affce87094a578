"""Pure parts of the kind provider: settings, command lines, faults; without a container engine."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from e2e.cluster.errors import CommandFailed
from e2e.cluster.kind import engine, node_image, settings
from e2e.cluster.kind.faults import explain
from e2e.cluster.paths import SOURCES
from e2e.cluster.tools import KUBE, version

REFUSES_ONCE = """#!/bin/sh
echo "$*" >>{folder}/calls
[ "$1" = rm ] && [ ! -e {folder}/refused ] || exit 0
touch {folder}/refused
echo "{said}" >&2
exit 125
"""


def refusing(folder: Path, said: str) -> engine.Engine:
    """An engine that refuses to remove containers once."""
    program = folder / "podman"
    program.write_text(REFUSES_ONCE.format(folder=folder, said=said), encoding="utf-8")
    program.chmod(0o755)
    return engine.Engine(str(program), {})


def test_a_node_that_ends_while_it_is_killed_is_removed_and_another_refusal_is_an_error(tmp_path: Path) -> None:
    node = engine.Container("one", "some-worker", "now", True, (), (), None)
    refusing(tmp_path, "sending SIGKILL to container one: container state improper: stopped").remove([node], "some")
    calls = (tmp_path / "calls").read_text(encoding="utf-8").splitlines()
    assert [call for call in calls if call.startswith("rm")] == [
        "rm --force --volumes one",
        "rm --force --volumes --ignore one",
    ]
    (tmp_path / "refused").unlink()
    with pytest.raises(CommandFailed, match="no space left"):
        refusing(tmp_path, "no space left").remove([node], "some")


@pytest.mark.parametrize("version", ["v1beta3", "v1beta4"])
@pytest.mark.parametrize("own_dns", [False, True])
def test_kubeadm_gets_the_same_settings_in_both_versions_of_its_api(version: str, own_dns: bool) -> None:
    written = settings.configuration("some", [], Path("/audit"), Path("/v"), "10.245.0.0/16", own_dns=own_dns)
    assert written["networking"] == {"podSubnet": "10.245.0.0/16"} | ({"dnsSearch": []} if own_dns else {})
    (first,) = written["nodes"]
    patches = {
        patch["kind"]: json.loads(patch["patch"])
        for patch in first["kubeadmConfigPatchesJSON6902"]
        if (patch["group"], patch["version"]) == ("kubeadm.k8s.io", version)
    }
    assert ("InitConfiguration" in patches) is own_dns
    steps = patches["ClusterConfiguration"]
    assert all(step["op"] == "add" for step in steps)
    # A list of names and values since v1beta4, a mapping before.
    arguments = {}
    for step in steps:
        place, _, name = step["path"].rpartition("/extraArgs/")
        if place and version == "v1beta4":
            assert name == "-"
            arguments[place, step["value"]["name"]] = step["value"]["value"]
        elif place:
            arguments[place, name] = step["value"]
    (mount,) = first["extraMounts"]
    assert mount["hostPath"] == "/audit"
    assert arguments["/apiServer", "audit-log-path"] == f"{mount['containerPath']}/audit.jsonl"
    assert arguments["/controllerManager", "node-monitor-grace-period"] == "16s"
    assert [step["value"][0]["hostPath"] for step in steps if step["path"] == "/apiServer/extraVolumes"] == [
        mount["containerPath"]
    ]


def inspected(*binds: str) -> str:
    """A node as podman describes it."""
    mounts = [{"Type": "bind", "Source": bind, "Destination": "/x"} for bind in binds]
    volume = {"Type": "volume", "Name": "v1", "Source": "/s/volumes/v1/_data", "Destination": "/var"}
    state = {"StartedAt": "2026-01-01T00:00:00Z", "Running": True}
    return json.dumps([{"Id": "abc", "Name": "/some-worker", "State": state, "Mounts": [volume, *mounts]}])


def test_a_node_belongs_to_the_cluster_whose_folder_it_has() -> None:
    """Not to one of the same name, and not to a neighbour whose folder begins alike."""
    (node,) = engine.parse(inspected("/cache/kind/volumes", "/lib/modules"))
    assert (node.id, node.name, node.volumes) == ("abc", "some-worker", ("v1",))
    assert node.outside(Path("/var/lib/x")) == Path("/s/volumes/v1/_data/lib/x")
    assert node.belongs(Path("/cache/kind"))
    assert not node.belongs(Path("/cache/kind1"))
    assert not node.belongs(Path("/other/kind"))
    (foreign,) = engine.parse(inspected("/lib/modules"))
    assert not foreign.belongs(Path("/cache/kind"))


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("OCI runtime error: crun: cgroups in hybrid mode not supported", "install runc"),
        ("error setting rlimit type 7: operation not permitted", "limits"),
        ("kubelet is configured to not run on a host using cgroup v1. cgroup v1 support is deprecated", "cgroup v2"),
        ("writing blob: write /x: no space left on device", "disk is full"),
        ("'overlay' is not supported over overlayfs, a mount_program is required", "XDG_CACHE_HOME"),
        ("running kind with rootless provider requires cgroup v2", "run as root"),
    ],
)
def test_what_is_wrong_with_a_machine_is_said_in_one_sentence(output: str, words: str) -> None:
    sentence = explain(f"first line\n{output}\nlast line")
    assert sentence is not None
    assert words in sentence
    assert "\n" not in sentence


def test_the_node_image_has_the_kubernetes_of_the_other_clusters() -> None:
    go_mod = (SOURCES / KUBE.module / "go.mod").read_text(encoding="utf-8")
    assert node_image.kubernetes() == version("k8s.io/kubernetes", go_mod)
    assert node_image.name().startswith(f"{node_image.REPOSITORY}:{node_image.kubernetes()}-")


def test_only_the_chains_of_netavark_are_removed_and_rules_before_chains() -> None:
    saved = """# Generated
*filter
:FORWARD ACCEPT [0:0]
:NETAVARK_FORWARD - [0:0]
-A FORWARD -i docker0 -j ACCEPT
-A FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD
COMMIT
*mangle
:OUTPUT ACCEPT [0:0]
COMMIT
"""
    assert engine.removal(saved) == (
        '*filter\n-D FORWARD -m comment --comment "netavark firewall plugin rules" -j NETAVARK_FORWARD\n'
        "-X NETAVARK_FORWARD\nCOMMIT\n"
    )
    assert engine.removal("") == ""

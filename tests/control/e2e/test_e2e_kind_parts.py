"""Pure parts of the kind provider: settings, command lines, faults; without a container engine."""

import json
from pathlib import Path

from e2e.cluster.kind import engine


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

"""Addresses and links of a bare cluster. PURE: the commands are decided here and run elsewhere."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import IPv4Network
from typing import Any


@dataclass(frozen=True, slots=True)
class Network:
    """The network of cluster number `instance`: several may run side by side on one machine.

    Nodes are numbered from 1. A node's network namespace, its cgroup and its end of the link have the same name in
    `namespace`.
    """

    instance: int = 0

    @property
    def bridge(self) -> str:
        return f"omni{self.instance}"

    @property
    def gateway(self) -> str:
        """The machine itself, where the API server listens."""
        return f"10.{200 + self.instance}.0.254"

    @property
    def pods(self) -> str:
        return f"10.{216 + self.instance}.0.0/16"

    @property
    def services(self) -> str:
        return f"10.{232 + self.instance}.0.0/16"

    @property
    def dns(self) -> str:
        """Address of the cluster's name server."""
        return f"10.{232 + self.instance}.0.10"

    @property
    def ranges(self) -> list[str]:
        return [f"10.{200 + self.instance}.0.0/24", self.pods, self.services]

    def address(self, number: int) -> str:
        return f"10.{200 + self.instance}.0.{number}"

    def pods_of(self, number: int) -> str:
        return f"10.{216 + self.instance}.{number}.0/24"

    def namespace(self, name: str) -> str:
        return f"{self.bridge}-{name}"

    def link(self, number: int) -> str:
        """The machine's end of a node's link; a link's name has 15 letters at most."""
        return f"{self.bridge}v{number}"


def links_up(network: Network, names: Sequence[str]) -> list[list[str]]:
    """Commands that make a bridge and, for each node, a namespace with a link to it; pods keep their addresses."""
    prefix = 24
    commands = [
        ["ip", "link", "add", network.bridge, "type", "bridge"],
        ["ip", "addr", "add", f"{network.gateway}/{prefix}", "dev", network.bridge],
        ["ip", "link", "set", network.bridge, "up"],
    ]
    numbers = range(1, len(names) + 1)
    for number, name in enumerate(names, 1):
        inside = ["ip", "-n", network.namespace(name)]
        commands += [
            ["ip", "netns", "add", network.namespace(name)],
            [
                "ip",
                "link",
                "add",
                network.link(number),
                "type",
                "veth",
                "peer",
                "name",
                "eth0",
                "netns",
                network.namespace(name),
            ],
            ["ip", "link", "set", network.link(number), "master", network.bridge, "up"],
            [*inside, "addr", "add", f"{network.address(number)}/{prefix}", "dev", "eth0"],
            [*inside, "link", "set", "eth0", "up"],
            [*inside, "route", "add", "default", "via", network.gateway],
            ["ip", "route", "add", network.pods_of(number), "via", network.address(number)],
        ]
        commands += [
            [*inside, "route", "add", network.pods_of(neighbor), "via", network.address(neighbor)]
            for neighbor in numbers
            if neighbor != number
        ]
    # Every node knows every service: the first one answers for the machine itself.
    return [*commands, ["ip", "route", "add", network.services, "via", network.address(1)]]


def links_down(network: Network, links: Iterable[str], namespaces: Iterable[str]) -> list[list[str]]:
    """Commands that remove the parts of this network that exist; routes go with the bridge."""
    own_links = sorted(link for link in links if link.startswith(f"{network.bridge}v"))
    own_namespaces = sorted(name for name in namespaces if name.startswith(f"{network.bridge}-"))
    commands = [["ip", "link", "del", link] for link in own_links]
    commands += [["ip", "netns", "del", name] for name in own_namespaces]
    return commands + ([["ip", "link", "del", network.bridge]] if network.bridge in set(links) else [])


def collisions(network: Network, routes: Iterable[Mapping[str, Any]]) -> list[str]:
    """Routes of the machine, as `ip -json route` lists them, that share addresses with this network."""
    ranges = [IPv4Network(item) for item in network.ranges]
    overlapping = []
    for route in routes:
        target = str(route.get("dst", ""))
        if target == "default" or route.get("dev") == network.bridge or not target[:1].isdigit():
            continue
        if any(IPv4Network(target, strict=False).overlaps(item) for item in ranges):
            overlapping.append(target)
    return overlapping

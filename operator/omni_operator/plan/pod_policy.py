"""Policy of a cluster's admin: what the author of a job may have its pods do. The default is Pod Security `restricted`.

It is a setting of the operator (`jobs.podPolicy` of the chart), so that no field of a job can change it.
"""

from collections.abc import Iterator
from typing import Annotated, Literal, TypeAlias

from pydantic import Field, StringConstraints
from typing_extensions import override

from omni_operator.api.base import AbsolutePath, Line, StrictModel, Violation

Profile: TypeAlias = Literal["RuntimeDefault", "Localhost", "Unconfined"]
VOLUME_TYPES = (
    "configMap",
    "csi",
    "downwardAPI",
    "emptyDir",
    "ephemeral",
    "persistentVolumeClaim",
    "projected",
    "secret",
)
OWN_VOLUME_TYPES = ("downwardAPI", "emptyDir", "persistentVolumeClaim", "projected")  # the operator's pods have them
CONFINED: tuple[Profile, ...] = ("RuntimeDefault", "Localhost")
EVERY_CAPABILITY = "ALL"
Capability = Annotated[str, StringConstraints(max_length=64, pattern=r"^[A-Z][A-Z0-9_]*$")]


class HostPath(StrictModel):
    """A path of the nodes that pods may mount."""

    path: AbsolutePath = Field(description="Path on the node; everything below it is allowed as well.")
    read_only: bool = Field(default=True, description="true: every mount of it must be readOnly.")


class PodPolicy(StrictModel):
    """What a job's pods may do; lists name what is allowed."""

    service_accounts: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=("default",), description="Service accounts. * in a name stands for any characters."
    )
    service_account_tokens: bool = Field(
        default=False, description="Tokens of the service account in the pods, with which they reach the API server."
    )
    secrets: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=("*",), description="Secrets of the job's namespace. * in a name stands for any characters."
    )
    run_as_root: bool = Field(default=False, description="User 0, and images whose user is not known.")
    privilege_escalation: bool = Field(default=False, description="Processes with more privileges than their parent.")
    privileged: bool = Field(default=False, description="Privileged containers, and hostProcess of Windows.")
    capabilities: Annotated[tuple[Capability, ...], Field(strict=False)] = Field(
        default=("NET_BIND_SERVICE",),
        description="Capabilities that containers may add; ALL: any, and they need not drop all others.",
    )
    host_namespaces: Annotated[tuple[Literal["Network", "IPC", "PID"], ...], Field(strict=False)] = Field(
        default=(), description="Namespaces of the node: hostNetwork, hostIPC, hostPID."
    )
    host_ports: Annotated[tuple[Annotated[int, Field(ge=1, le=65535)], ...], Field(strict=False)] = Field(
        default=(), description="Ports of the node."
    )
    host_paths: Annotated[tuple[HostPath, ...], Field(strict=False)] = Field(
        default=(), description="Paths of the node, for volumes of type hostPath."
    )
    node_name: bool = Field(default=False, description="nodeName, which bypasses the scheduler and its queues.")
    volume_types: Annotated[tuple[Line, ...], Field(strict=False)] = Field(
        default=VOLUME_TYPES, description="Types of volumes, besides hostPath."
    )
    seccomp_profiles: Annotated[tuple[Profile, ...], Field(strict=False)] = Field(
        default=CONFINED, description="Types of seccomp profiles."
    )
    app_armor_profiles: Annotated[tuple[Profile, ...], Field(strict=False)] = Field(
        default=CONFINED, description="Types of AppArmor profiles."
    )

    @override
    def violations(self) -> Iterator[Violation]:
        """The operator's own pods must satisfy every policy."""
        if missing := [kind for kind in OWN_VOLUME_TYPES if kind not in self.volume_types]:
            yield Violation(("volumeTypes",), f"must contain {', '.join(missing)}: every job's pods have such volumes")
        if "hostPath" in self.volume_types:
            yield Violation(("volumeTypes",), "must not contain hostPath: list its paths in hostPaths")
        if "RuntimeDefault" not in self.seccomp_profiles:
            yield Violation(("seccompProfiles",), "must contain RuntimeDefault, the profile of every job's pods")

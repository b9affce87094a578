"""`spec.scheduling`, `spec.security`, `spec.observability`: the cluster around a job. Cluster only."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal

from pydantic import Field, StringConstraints
from typing_extensions import override

from .base import Cel, LabelKey, NullFree, ObjectName, StrictModel, Violation
from .pods import KeyReference

WANDB_UNUSED = "nothing reads this key: add wandb to spec.observability.tracking.loggers"
PROJECT_UNUSED = "nothing is tracked: name a tracker in spec.observability.tracking.loggers"
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]


class Topology(StrictModel):
    """Which nodes the pods should share, by Kueue's topology levels (labels of nodes)."""

    required: LabelKey | None = Field(default=None, description="All pods in one domain of this level, or none at all.")
    preferred: LabelKey | None = Field(default=None, description="In one domain of this level, if there is one.")

    cel = (
        Cel("!has(self.required) || !has(self.preferred)", "required and preferred: one of them", ".preferred"),
    )  # fmt: skip

    @override
    def violations(self) -> Iterator[Violation]:
        if self.required and self.preferred:
            yield Violation(("preferred",), "required and preferred: one of them")


class Toleration(StrictModel):
    """A taint of nodes that the pods may run in spite of."""

    key: LabelKey | None = Field(default=None, description="Key of the taint. None: every one.")
    operator: Literal["Exists", "Equal"] = Field(default="Exists", description="Exists: whatever the value.")
    value: LabelValue | None = Field(default=None, description="Value of the taint, with Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint. None: every one."
    )


class Scheduling(StrictModel):
    """Where pods go. Queues are named by labels of the job, which its RayJob gets (Kueue, Volcano, KAI, YuniKorn)."""

    scheduler_name: ObjectName | None = Field(default=None, description="Scheduler of the pods.")
    priority_class_name: ObjectName | None = Field(default=None, description="PriorityClass of the pods.")
    node_selector: Annotated[dict[LabelKey, LabelValue], NullFree] = Field(
        default_factory=dict, max_length=32, description="Labels of the nodes that workers run on."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), max_length=32, description="Taints that workers run in spite of."
    )
    topology: Topology = Field(default=Topology(), description="Nodes close to each other.")


class Security(StrictModel):
    """What a job's pods may do and who may reach them."""

    ray_auth: Literal["Token", "Disabled"] = Field(
        default="Token", description="Token: Ray's dashboard and ports ask for a token that KubeRay makes."
    )
    network_policy: Literal["DefaultDeny", "DenyIngress", "Disabled"] = Field(
        default="DenyIngress",
        description="DenyIngress: only the job's own pods, KubeRay and scrapers reach it. "
        "DefaultDeny: it reaches only those too, and DNS and the operator.",
    )
    allow_host_paths: bool = Field(
        default=False, description="Let pod templates reach into the node: hostPath, host namespaces, privileged."
    )


class PodMonitor(StrictModel):
    """A PodMonitor, for the Prometheus operator."""

    enabled: bool = Field(default=False, description="Make one; its CRD must be installed.")
    interval: Annotated[str, StringConstraints(max_length=16, pattern=r"^[1-9][0-9]*(s|m)$")] = Field(
        default="30s", description="How often pods are scraped."
    )
    labels: Annotated[dict[LabelKey, LabelValue], NullFree] = Field(
        default_factory=dict, max_length=16, description="Labels by which your Prometheus finds it."
    )


class Tracking(StrictModel):
    """Experiment trackers that the trainer logs its metrics to, under the name of the job."""

    loggers: Annotated[tuple[Literal["console", "tensorboard", "wandb"], ...], Field(strict=False)] = Field(
        default=(),
        max_length=3,
        description="Trackers that get every step's metrics. console: the trainer's output. tensorboard: files in the "
        "run folder. wandb: Weights & Biases. Default: none.",
    )
    project: Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = Field(
        default=None, description="Project that the tracker files the run under. Default: omni-operator."
    )
    wandb_secret_ref: KeyReference | None = Field(
        default=None,
        description="Key of a Secret with the API key for wandb; required by wandb on a cluster. Cluster only: a local "
        "run takes WANDB_API_KEY or the login of `wandb login`.",
    )

    cel = (
        Cel(
            "!has(self.wandbSecretRef) || (has(self.loggers) && 'wandb' in self.loggers)",
            WANDB_UNUSED,
            ".wandbSecretRef",
        ),
        Cel("!has(self.project) || (has(self.loggers) && self.loggers.size() > 0)", PROJECT_UNUSED, ".project"),
    )

    @override
    def violations(self) -> Iterator[Violation]:
        if self.wandb_secret_ref and "wandb" not in self.loggers:
            yield Violation(("wandbSecretRef",), WANDB_UNUSED)
        if self.project and not self.loggers:
            yield Violation(("project",), PROJECT_UNUSED)


class Observability(StrictModel):
    """Metrics and experiment tracking."""

    pod_monitor: PodMonitor = Field(default=PodMonitor(), description="Scraping by the Prometheus operator.")
    tracking: Tracking = Field(default=Tracking(), description="Experiment tracking.")

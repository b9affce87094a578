"""`spec.scheduling`, `spec.security`, `spec.observability`."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from omni_operator.api.base import LabelKey, NullFree, ObjectName, Rule, StrictModel
from verl_omni.settings_schema.declarations import TRACKERS_WITH_IMAGES
from verl_omni.settings_schema.layout import default_of

from .pods import KeyReference

WANDB_UNUSED = "has no effect unless spec.observability.tracking.loggers contains wandb"
PROJECT_UNUSED = "has no effect unless spec.observability.tracking.loggers names a tracker"
IMAGES_UNUSED = "has no effect unless spec.observability.tracking.loggers contains tensorboard, wandb or mlflow"
VALUE_WITH_EXISTS = "needs operator: Equal; Exists, the default, tolerates any value"
EQUAL_WITHOUT_KEY = "must be given with operator Equal"
ONE_LEVEL = "must not be given with topology.required: choose one of them"
LabelValue = Annotated[str, StringConstraints(max_length=63, pattern=r"^([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?$")]


class Topology(StrictModel):
    """Topology-aware scheduling by Kueue: a level is a node label, e.g. one of a rack."""

    required: LabelKey | None = Field(default=None, description="Level: all pods run in one domain, or the job waits.")
    preferred: LabelKey | None = Field(default=None, description="Level: all pods run in one domain if one has room.")

    cel = (Rule("self.required is None or self.preferred is None", "preferred", ONE_LEVEL),)


class Toleration(StrictModel):
    """A toleration of a node taint."""

    key: LabelKey | None = Field(default=None, description="Key of the taint. Default: every key.")
    operator: Literal["Exists", "Equal"] = Field(
        default="Exists", description="Exists: any value. Equal: the value below."
    )
    value: LabelValue | None = Field(default=None, description="Value of the taint, for operator Equal.")
    effect: Literal["NoSchedule", "PreferNoSchedule", "NoExecute"] | None = Field(
        default=None, description="Effect of the taint. Default: every effect."
    )

    cel = (
        Rule("self.value is None or self.operator == 'Equal'", "value", VALUE_WITH_EXISTS),
        Rule("self.key is not None or self.operator == 'Exists'", "key", EQUAL_WITHOUT_KEY),
    )


class PoolScheduling(StrictModel):
    """Nodes for the pods of a pool."""

    node_selector: Annotated[dict[LabelKey, LabelValue], NullFree] = Field(
        default_factory=dict, max_length=32, description="Labels that a node needs to run these pods."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), max_length=32, description="Node taints that these pods tolerate."
    )
    topology: Topology = Field(
        default=Topology.model_construct(), description="Topology-aware scheduling of these pods by Kueue."
    )


class Scheduling(StrictModel):
    """Scheduling of the pods. Queue labels of the job (Kueue, Volcano, KAI, YuniKorn) are copied to its RayJob."""

    scheduler_name: ObjectName | None = Field(
        default=None, description="Scheduler of the pods. Default: the cluster's."
    )
    priority_class_name: ObjectName | None = Field(
        default=None, description="PriorityClass of the pods. Default: the cluster's."
    )
    node_selector: Annotated[dict[LabelKey, LabelValue], NullFree] = Field(
        default_factory=dict, max_length=32, description="Labels that a node needs to run the trainer's pods."
    )
    tolerations: Annotated[tuple[Toleration, ...], Field(strict=False)] = Field(
        default=(), max_length=32, description="Node taints that the trainer's pods tolerate."
    )
    topology: Topology = Field(default=Topology.model_construct(), description="Topology-aware scheduling by Kueue.")
    voluntary_disruptions: Literal["Block", "Allow"] = Field(
        default="Block",
        description="Block: a PodDisruptionBudget and annotations keep drains and autoscalers away from the head's and "
        "the trainer's pods. Allow: neither; what ends a pod lets it save, and another attempt resumes.",
    )


class Security(StrictModel):
    """Authentication and network policy of the pods."""

    ray_auth: Literal["Token", "Disabled"] = Field(
        default="Token",
        description="Token: Ray's dashboard and ports require a token, which KubeRay creates. Disabled: anyone who "
        "can reach them can run code.",
    )
    network_policy: Literal["DefaultDeny", "DenyIngress", "Disabled"] = Field(
        default="DenyIngress",
        description="DenyIngress: only the job's own pods, KubeRay and metrics scrapers may connect to its pods. "
        "DefaultDeny: also limits where its pods may connect: each other, DNS, the operator, and reward servers, "
        "store, model hub and tracker. Of these, a URL with an IP address opens that address, and one with a Service "
        "(NAME, NAME.NAMESPACE.svc) the pods of its namespace; one with another name opens its port at every address "
        "(annotation diffusionrl.io/open-ports of the NetworkPolicy). Disabled: no NetworkPolicy.",
    )


class PodMonitor(StrictModel):
    """PodMonitor of the Prometheus operator. Cluster only."""

    enabled: bool = Field(
        default=False, description="Create a PodMonitor for Ray's metrics. Its custom resource must be installed."
    )
    interval: Annotated[str, StringConstraints(max_length=16, pattern=r"^[1-9][0-9]*(s|m)$")] = Field(
        default="30s", description="Time between scrapes, e.g. 30s or 1m."
    )
    labels: Annotated[dict[LabelKey, LabelValue], NullFree] = Field(
        default_factory=dict, max_length=16, description="Labels of the PodMonitor, for Prometheus to select it."
    )


class Tracking(StrictModel):
    """Experiment trackers that the trainer logs its metrics to, under the name of the job."""

    loggers: Annotated[
        tuple[Literal["console", "tensorboard", "wandb", "mlflow", "trackio"], ...], Field(strict=False)
    ] = Field(
        default=(),
        max_length=5,
        description="Trackers that get every step's metrics. console: the trainer's output. tensorboard: files in the "
        "run folder. wandb: Weights & Biases. mlflow: the server in the trainer's variable MLFLOW_TRACKING_URI, else "
        "a database in the run folder. trackio: files in the run folder. These two need an image with their package. "
        "Default: none.",
    )
    images: int | None = Field(
        default=None,
        ge=0,
        le=100,
        description="Held-out samples of each evaluation that trackers show. Default: 8.",
    )
    project: Annotated[str, StringConstraints(max_length=128, pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$")] | None = Field(
        default=None,
        description=f"Project that the tracker files the run under. Default: {default_of('trainer.project_name')}.",
    )
    wandb_secret_ref: KeyReference | None = Field(
        default=None,
        description="Key of a Secret with the API key for wandb; required by wandb on a cluster. Cluster only: a local "
        "run takes WANDB_API_KEY or the login of `wandb login`.",
    )

    cel = (
        Rule(
            "self.wandb_secret_ref is None or (self.loggers is not None and 'wandb' in self.loggers)",
            "wandbSecretRef",
            WANDB_UNUSED,
        ),
        Rule(
            "self.project is None or (self.loggers is not None and len(self.loggers) > 0)",
            "project",
            PROJECT_UNUSED,
        ),
        Rule(
            "self.images is None or (self.loggers is not None and any(each != 'console' for each in self.loggers))",
            "images",
            IMAGES_UNUSED,
        ),
    )

    @property
    def shown_images(self) -> int:
        """Held-out samples that trackers show; 0 where none can."""
        if not set(self.loggers) & set(TRACKERS_WITH_IMAGES):
            return 0
        return 8 if self.images is None else self.images


class Observability(StrictModel):
    """Metrics and experiment tracking."""

    pod_monitor: PodMonitor = Field(
        default=PodMonitor.model_construct(), description="PodMonitor of the Prometheus operator. Cluster only."
    )
    tracking: Tracking = Field(
        default=Tracking.model_construct(), description="Experiment trackers that get the metrics of the run."
    )

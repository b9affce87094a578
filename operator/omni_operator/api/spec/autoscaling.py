"""`autoscaling` of rollout and reward pods: how many of them an attempt has, by what waits for them."""

from collections.abc import Iterator

from pydantic import Field

from omni_operator.api.base import Cel, Rule, StrictModel

NO_RANGE = "must not be less than minReplicas"


class Autoscaling(StrictModel):
    """Limits of the number of pods, and how long fewer must have been enough."""

    min_replicas: int = Field(default=1, ge=1, le=1024, description="Minimum number of pods.")
    max_replicas: int = Field(ge=1, le=1024, description="Maximum number of pods.")
    stabilization_seconds: int = Field(
        default=300,
        ge=1,
        le=3600,
        description="Pods are removed when fewer have been enough for so long. Longer than a training step, or each "
        "update removes them.",
    )

    cel = (
        Rule(
            "self.min_replicas <= self.max_replicas",
            "maxReplicas",
            NO_RANGE,
            f"is {{self.max_replicas}}: {NO_RANGE}, which is {{self.min_replicas}}",
        ),
    )


class RolloutAutoscaling(Autoscaling):
    """How many rollout pods an attempt has, by the samples that wait for generation. Separate and cluster only."""

    samples_per_replica: int = Field(
        ge=1,
        le=1_000_000,
        description="Samples for one rollout pod, of those that are not generated yet: with more for each, pods are "
        "added.",
    )


class JudgeAutoscaling(Autoscaling):
    """How many reward pods an attempt has, by the requests that wait for the judge. Separate and cluster only."""

    requests_per_replica: int = Field(
        ge=1,
        le=1_000_000,
        description="Requests for one reward pod, of those that the judge has not answered yet: with more for each, "
        "pods are added.",
    )


def autoscaling_rules(field: str, instead: str) -> Iterator[Cel | Rule]:
    """Rules of a model with the fields `placement`, `replicas` and `autoscaling`, which is for Separate only.

    Args:
        field: path of the model, such as `spec.rollout`.
        instead: how to change `replicas` without autoscaling.
    """
    out_of_range = f"must be from {field}.autoscaling.minReplicas to {field}.autoscaling.maxReplicas"
    yield Rule(
        "self.placement != 'Separate' or self.autoscaling is None or "
        "(self.replicas >= self.autoscaling.min_replicas and self.replicas <= self.autoscaling.max_replicas)",
        "replicas",
        out_of_range,
        f"is {{self.replicas}}: {out_of_range}, {{self.autoscaling.min_replicas}} to {{self.autoscaling.max_replicas}}",
    )
    # The scale subresource changes replicas too, so an autoscaler of Kubernetes is refused with this message.
    yield Cel(
        "!has(self.autoscaling) || !has(oldSelf.autoscaling) || self.replicas == oldSelf.replicas",
        f"cannot change while {field}.autoscaling does: remove it to scale with {instead}",
        ".replicas",
    )

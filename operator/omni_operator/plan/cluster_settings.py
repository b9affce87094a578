"""What the operator knows about its cluster and jobs do not say."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType

# What vendors call a device unless their plug-in was told otherwise; the chart's values and every job may say else.
RESOURCE_NAMES: Mapping[str, str] = MappingProxyType({"NVIDIA": "nvidia.com/gpu", "Ascend": "huawei.com/Ascend910"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterSettings:
    """Settings of the operator that show in what it renders.

    Attributes:
        image, ray_version: of jobs that name none. No image: such jobs are refused.
        resource_names: what device plug-ins call a device, by vendor, where a job does not say it.
        report_url: where running jobs report; None: they do not.
        operator_namespace: where the operator runs, for egress to `report_url`.
        kuberay_namespace: where KubeRay runs; None: it may be anywhere.
        linger_seconds: how long the pods of an ended attempt stay, for their exit codes to be read.
    """

    image: str | None = None
    ray_version: str = "2.60.0"
    resource_names: Mapping[str, str] = field(default_factory=lambda: RESOURCE_NAMES)
    report_url: str | None = None
    operator_namespace: str = "omni-operator"
    kuberay_namespace: str | None = None
    linger_seconds: int = 10

"""What the operator knows about its cluster and jobs do not say; the operator and `drl render` read the same file."""

from __future__ import annotations

from typing import Annotated

from pydantic import ConfigDict, Field

from omni_operator.api.base import NullFree, StrictModel
from omni_operator.api.pods import ResourceName, Vendor

# What vendors call a device unless their plug-in was told otherwise; the settings and every job may say else.
RESOURCE_NAMES: dict[Vendor, str] = {"NVIDIA": "nvidia.com/gpu", "Ascend": "huawei.com/Ascend910"}


class ClusterSettings(StrictModel):
    """Settings of the operator that show in what it renders."""

    model_config = ConfigDict(validate_by_name=True)

    image: str | None = Field(default=None, description="Image of jobs that name none. None: such jobs are refused.")
    ray_version: str = Field(default="2.60.0", description="Version of Ray in it.")
    resource_names: Annotated[dict[Vendor, ResourceName], NullFree] = Field(
        default=RESOURCE_NAMES, description="What device plug-ins call a device, where a job does not say it."
    )
    report_url: str | None = Field(
        default=None, description="The operator's address, to which running jobs report. None: they do not."
    )
    operator_namespace: str = Field(default="omni-operator", description="Where the operator runs.")
    kuberay_namespace: str | None = Field(default=None, description="Where KubeRay runs. None: it may be anywhere.")
    linger_seconds: int = Field(
        default=10, ge=0, description="How long the pods of an ended attempt stay, for their exit codes to be read."
    )

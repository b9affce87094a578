"""Settings of the operator that appear in rendered objects; `drl render --settings` reads the same."""

from typing import Annotated

from pydantic import AfterValidator, ConfigDict, Field

from omni_operator.api.base import NullFree, StrictModel
from omni_operator.api.spec.pods import ResourceName, Vendor

from .pod_policy import PodPolicy

# Default resource names of the vendors' device plug-ins; settings and jobs can override them.
RESOURCE_NAMES: dict[Vendor, str] = {"NVIDIA": "nvidia.com/gpu", "Ascend": "huawei.com/Ascend910"}


class ClusterSettings(StrictModel):
    """Settings of the operator that appear in rendered objects."""

    model_config = ConfigDict(validate_by_name=True)

    image: str | None = Field(
        default=None, description="Default image of jobs. Default: none; jobs without an image are refused."
    )
    ray_version: str = Field(default="2.60.0", description="Version of Ray in the default image.")
    resource_names: Annotated[
        dict[Vendor, ResourceName], NullFree, AfterValidator(lambda given: {**RESOURCE_NAMES, **given})
    ] = Field(
        default=RESOURCE_NAMES, description="Resource name of accelerators by vendor, for jobs that do not name it."
    )
    pod_policy: PodPolicy = Field(default=PodPolicy.model_construct(), description="What the pods of jobs may do.")
    report_url: str | None = Field(
        default=None, description="URL to which running jobs report. Default: none; jobs do not report."
    )
    operator_namespace: str = Field(default="omni-operator", description="Namespace of the operator.")
    kuberay_namespace: str | None = Field(default=None, description="Namespace of KubeRay. Default: any.")
    linger_seconds: int = Field(
        default=10, ge=0, description="Seconds before the pods of an ended attempt are deleted, for reading exit codes."
    )

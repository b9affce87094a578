"""Pod templates and resources with mistakes that only the API server's rules for pods find, and right ones like them.

Each mistake has the field of a trainer's job that is to blame, below `spec.trainer`, and words of the message.
"""

from typing import Any

Fields = dict[str, Any]


def ray(**fields: Any) -> Fields:
    return {"podTemplate": {"spec": {"containers": [{"name": "ray", **fields}]}}}


def pod(**fields: Any) -> Fields:
    return {"podTemplate": {"spec": fields}}


def side(kind: str = "containers", **fields: Any) -> Fields:
    return pod(**{kind: [{"name": "agent", "image": "agent:1", **fields}]})


def mounted(name: str, **fields: Any) -> Fields:
    mounts = [{"name": name, "mountPath": "/data"}]
    return pod(containers=[{"name": "ray", "volumeMounts": mounts}], **fields)


def given(requests: Fields, limits: Fields | None = None) -> Fields:
    return {"requests": requests, "limits": limits or {}}


DATA = [{"name": "data", "emptyDir": {}}]
CONTAINER = "podTemplate.spec.containers[0]"
MISTAKES: dict[str, tuple[Fields, str, str]] = {
    "a mount of a misspelt volume": (
        mounted("dta", volumes=DATA),
        f"{CONTAINER}.volumeMounts[0].name",
        "the pod has no volume 'dta'; did you mean 'data'?",
    ),
    "a mount of no volume": (
        mounted("weights"),
        f"{CONTAINER}.volumeMounts[0].name",
        "the pod has no volume 'weights': add it to volumes",
    ),
    "a mount of an init container": (
        side("initContainers", volumeMounts=[{"name": "weights", "mountPath": "/w"}]),
        "podTemplate.spec.initContainers[0].volumeMounts[0].name",
        "the pod has no volume 'weights'",
    ),
    "a block device of no volume": (
        ray(volumeDevices=[{"name": "disk", "devicePath": "/dev/d"}]),
        f"{CONTAINER}.volumeDevices[0].name",
        "the pod has no volume 'disk'",
    ),
    "a sidecar without an image": (pod(containers=[{"name": "agent"}]), CONTAINER, "image must be given"),
    "an init container without an image": (
        pod(initContainers=[{"name": "agent", "image": ""}]),
        "podTemplate.spec.initContainers[0].image",
        "must be given",
    ),
    "a name of a container with capitals": (
        pod(containers=[{"name": "My_Agent", "image": "agent:1"}]),
        f"{CONTAINER}.name",
        "is 'My_Agent': must have at most 63 lower-case letters",
    ),
    "a name of a volume with a dot": (
        pod(volumes=[{"name": "my.data", "emptyDir": {}}]),
        "podTemplate.spec.volumes[0].name",
        "is 'my.data'",
    ),
    "a volume with two sources": (
        pod(volumes=[{"name": "data", "emptyDir": {}, "configMap": {"name": "c"}}]),
        "podTemplate.spec.volumes[0]",
        "has 2 sources, configMap, emptyDir: keep one",
    ),
    "one name for two containers": (
        pod(containers=[{"name": "a", "image": "a:1"}], initContainers=[{"name": "a", "image": "a:1"}]),
        "podTemplate.spec.initContainers[0].name",
        "'a' is the name of another container",
    ),
    "a negative grace period": (
        pod(terminationGracePeriodSeconds=-5),
        "podTemplate.spec.terminationGracePeriodSeconds",
        "is -5: must not be negative",
    ),
    "a negative delay of a probe": (
        ray(livenessProbe={"exec": {"command": ["true"]}, "initialDelaySeconds": -1}),
        f"{CONTAINER}.livenessProbe.initialDelaySeconds",
        "is -1: must not be negative",
    ),
    "a template that requests more than its limit": (
        ray(resources=given({"memory": "9Gi"}, {"memory": "8Gi"})),
        f"{CONTAINER}.resources.requests.memory",
        "is 9Gi: more than the limit, which is 8Gi",
    ),
    "a limit of a template below the operator's request": (
        ray(resources={"limits": {"memory": "1Gi"}}),
        f"{CONTAINER}.resources",
        "requests.memory is 6Gi: more than the limit, which is 1Gi",
    ),
    "a job that requests more than its limit": (
        {"resources": given({"cpu": "2"}, {"cpu": "500m"})},
        "resources.requests.cpu",
        "is 2: more than the limit, which is 500m",
    ),
    "a device without a limit": (
        {"resources": given({"rdma/hca": "1"})},
        "resources.requests.rdma/hca",
        "is 1: must have an equal limit",
    ),
    "huge pages with another limit": (
        {"resources": given({"hugepages-2Mi": "2Mi"}, {"hugepages-2Mi": "4Mi"})},
        "resources.requests.hugepages-2Mi",
        "is 2Mi: must have an equal limit",
    ),
    "a resource that containers do not have": (
        {"resources": given({}, {"gpu": "1"})},
        "resources.limits.gpu",
        "containers have no resource 'gpu': write cpu, memory,",
    ),
}
RIGHT: dict[str, Fields] = {
    "a mount of a volume": mounted("data", volumes=DATA),
    "a mount of the operator's volume": mounted("shared-memory"),
    "a volume without a source": mounted("data", volumes=[{"name": "data"}]),
    "a sidecar": side(resources={"limits": {"cpu": "1"}}),
    "no grace period": pod(terminationGracePeriodSeconds=0),
    "a toleration that ends at once": pod(
        tolerations=[{"operator": "Exists", "effect": "NoExecute", "tolerationSeconds": -1}]
    ),
    "equal requests and limits": {"resources": given({"cpu": "2", "rdma/hca": "1"}, {"cpu": "2000m", "rdma/hca": "1"})},
    "a limit alone": {"resources": given({}, {"memory": "1Gi", "rdma/hca": "1"})},
    "the accelerators once more": {"resources": given({"nvidia.com/gpu": "1"})},
    "huge pages": {"resources": given({"hugepages-2Mi": "4Mi"}, {"hugepages-2Mi": "4Mi"})},
}

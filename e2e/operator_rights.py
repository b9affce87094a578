"""The least rights that the operator needs: those that the chart grants, and that tests run it with."""

from typing import Any

from e2e.cluster.api import Api
from omni_operator.handlers.background import LEASE as CANARY

Rule = dict[str, Any]


def rule(group: str, resources: str, verbs: str) -> Rule:
    """One rule; resources and verbs are separated by blanks."""
    return {"apiGroups": [group], "resources": resources.split(), "verbs": verbs.split()}


# In the watched namespaces. `get` reads an object whose name was taken when it was created, a RayCluster before its
# pods are replaced, and a job whose status the operator wrote from an older version of it.
WATCHED: tuple[Rule, ...] = (
    rule("diffusionrl.io", "diffusionrljobs", "get list watch delete"),
    rule("diffusionrl.io", "diffusionrljobs/status", "patch"),
    rule("diffusionrl.io", "diffusionrljobs/finalizers", "update"),  # to own children with blockOwnerDeletion
    rule("ray.io", "rayjobs", "get list watch create patch delete"),
    rule("ray.io", "rayclusters", "get list watch patch"),
    rule("kueue.x-k8s.io", "workloads", "list"),  # before a queued job asks for fewer rollout pods
    rule("", "pods", "list watch"),
    rule("networking.k8s.io", "networkpolicies", "get list watch create patch"),
    rule("monitoring.coreos.com", "podmonitors", "get list watch create patch"),
    rule("policy", "poddisruptionbudgets", "create"),
    rule("events.k8s.io", "events", "create"),
)
LEASE = "shared"  # the leader's Lease in tests that run the operator with these rights
# In the operator's own namespace: its Leases, and the event of a new leader.
OWN: tuple[Rule, ...] = (
    rule("coordination.k8s.io", "leases", "list watch create"),
    {**rule("coordination.k8s.io", "leases", "get patch"), "resourceNames": [LEASE, CANARY]},
    rule("events.k8s.io", "events", "create"),
)
# In the whole cluster: whose token it is.
CLUSTER: tuple[Rule, ...] = (rule("authentication.k8s.io", "tokenreviews", "create"),)


def grant(api: Api, namespace: str, kind: str, rules: tuple[Rule, ...]) -> None:
    """Bind a role with these rules to the namespace's default service account."""
    where = f"namespaces/{namespace}/" if kind == "Role" else ""
    name = f"operator-{namespace}"
    root = f"/apis/rbac.authorization.k8s.io/v1/{where}"
    api.post(f"{root}{kind.lower()}s", {"metadata": {"name": name}, "rules": list(rules)})
    subject = {"kind": "ServiceAccount", "name": "default", "namespace": namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    api.post(f"{root}{kind.lower()}bindings", binding)

"""Rights of the operator that are taken away while it runs, or that it lacks in one of its namespaces."""

import copy
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import operator
from e2e.operator_rights import CLUSTER, LEASE, OWN, WATCHED, grant

pytestmark = pytest.mark.cluster
QUICK: dict[str, Any] = {"CANARY_SECONDS": "600", "RETRY_SECONDS": "0.1", "LEASE": LEASE}


@pytest.fixture
def kubeconfig(installed: ControlPlane, api: Api, namespace: str) -> Path:
    """Kubeconfig of an operator with the chart's rights in one namespace."""
    installed.await_account(namespace)
    grant(api, namespace, "Role", (*WATCHED, *OWN))
    grant(api, namespace, "ClusterRole", CLUSTER)
    return installed.kubeconfig_of_account(namespace, "default")


def test_rights_that_are_taken_away_are_named_until_they_are_back(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, kubeconfig: Path
) -> None:
    role = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles/operator-{namespace}"
    rules = api.get(role)["rules"]

    def allow(**without: str) -> None:
        """All rights but a verb on a kind."""
        fewer: list[dict[str, Any]] = copy.deepcopy(rules)
        for rule in fewer:
            for resource, verb in without.items():
                if resource in rule["resources"]:
                    rule["verbs"].remove(verb)
        api.patch(role, {"rules": fewer})

    with operator(installed, tmp_path, kubeconfig, NAMESPACE=namespace, NAMESPACES=namespace, **QUICK):
        ended = JobOnPlane(api, namespace, "ended", spec={"ttlSecondsAfterFinished": 1})
        lost = JobOnPlane(api, namespace, "lost")
        ended.start()
        lost.start()
        allow(diffusionrljobs="delete", rayjobs="get")
        ended.end(1)
        condition = ended.await_condition("Ready", "False", "Forbidden")
        assert 'cannot delete resource "diffusionrljobs"' in condition["message"]
        assert ended.status()["state"] == "Succeeded"
        path = lost.ray("rayjobs", lost.attempt(1))
        labels = api.get(path)["metadata"]["labels"]
        api.patch(path, {"metadata": {"labels": dict.fromkeys(labels)}})
        condition = lost.await_condition("Ready", "False", "Forbidden")
        assert 'cannot get resource "rayjobs"' in condition["message"]
        allow()
        ended.await_gone()
        lost.await_condition("Ready", "True")
        assert (lost.status()["attempts"], lost.status().get("failures", [])) == (1, [])
        assert api.get(path)["metadata"]["labels"] == labels
        api.delete(lost.own_path)  # other tests have an operator that would continue it
        lost.await_gone()


def test_a_namespace_without_rights_does_not_stop_the_others(
    installed: ControlPlane, api: Api, namespace: str, tmp_path: Path, kubeconfig: Path
) -> None:
    """As when its owner has deleted it, or the RoleBinding there."""
    settings: dict[str, Any] = {"NAMESPACE": namespace, "NAMESPACES": f"gone,{namespace}", **QUICK}
    with operator(installed, tmp_path, kubeconfig, **settings) as running:
        job = JobOnPlane(api, namespace)
        job.start()
        job.end(1)
        job.await_condition("Succeeded", "True")
        deadlines.wait_until(
            "the log to name the namespace",
            JOB_SEEN,
            lambda: "namespace gone: the operator may not watch pods" in running.log.read_text(encoding="utf-8"),
        )
        assert [running.page(path).status_code for path in ("/healthz", "/readyz")] == [200, 200]
        api.delete(job.own_path)
        job.await_gone()

"""`drl submit` against a small API server, and the comparison of two jobs."""

import json
from typing import Any

import pytest

from control.client.fake_server import PATH, FakeServer
from control.client.job_objects import EXAMPLE
from omni_operator.api import load_job
from omni_operator.client import ClusterError, InvalidName
from omni_operator.client.operator_settings import AmbiguousOperator, SettingsUnreadable, select_settings
from omni_operator.client.submission import UNREADABLE, find_differences


def document() -> dict[str, Any]:
    return load_job(EXAMPLE).document.plain()


def deployment(namespace: str, **settings: str) -> dict[str, Any]:
    env = [{"name": f"OMNI_OPERATOR_{name}", "value": value} for name, value in settings.items()]
    env.append({"name": "OMNI_OPERATOR_ADDRESS", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}})
    containers = [{"name": "sidecar"}, {"name": "operator", "env": env}]
    meta = {"namespace": namespace, "name": "omni"}
    return {"metadata": meta, "spec": {"template": {"spec": {"containers": containers}}}}


def test_a_job_is_created_as_it_is_written(server: FakeServer) -> None:
    server.jobs.clear()
    sent = server.drl("submit", str(EXAMPLE))
    assert (sent.exit_code, sent.stdout) == (0, "red-grpo-cluster created in namespace team\n"), sent.output
    written = document()
    assert server.posts == [{**written, "metadata": {**written["metadata"], "namespace": "team"}}]
    assert server.queries[-1] == {"fieldValidation": "Strict"}, "else an older format drops fields"
    again = server.drl("submit", str(EXAMPLE))
    assert (again.exit_code, "nothing was created" in again.stdout) == (0, True)


def test_a_job_of_another_namespace_or_without_a_name_is_refused(server: FakeServer) -> None:
    client = server.client()
    body = document()
    with pytest.raises(ClusterError, match=r"of red-grpo-cluster is prod, and this client is for team: nothing was"):
        client.submit({**body, "metadata": {**body["metadata"], "namespace": "prod"}})
    for metadata in ({}, {"generateName": "red-"}):
        with pytest.raises(InvalidName, match="'' is not a valid name of a job"):
            client.submit({**body, "metadata": metadata})
    assert server.posts == []


def test_a_dry_run_creates_nothing(server: FakeServer) -> None:
    server.jobs.clear()
    tried = server.drl("submit", str(EXAMPLE), "--dry-run", "--json")
    assert json.loads(tried.stdout)["created"] is False
    assert (len(server.posts), server.jobs) == (1, {})
    assert server.queries[-1] == {"fieldValidation": "Strict", "dryRun": "All"}


def test_a_field_that_the_cluster_would_drop_is_refused(server: FakeServer) -> None:
    server.refusal = 400, {"message": 'strict decoding error: unknown field "spec.output"'}
    refused = server.drl("submit", str(EXAMPLE))
    assert (refused.exit_code, refused.stdout) == (1, "")
    assert 'unknown field "spec.output"; nothing was changed: the definition of jobs on the cluster (CRD) is older' in (
        refused.stderr
    )


def test_a_user_who_may_only_create_learns_that_the_name_is_taken(server: FakeServer) -> None:
    server.jobs["red-grpo-cluster"] = document()
    server.objects[f"{PATH}/red-grpo-cluster"] = 403, {"message": "User u cannot get resource"}
    message = server.fails(2, "submit", str(EXAMPLE))
    assert "namespace team has a job red-grpo-cluster, and you may not read it" in message


def test_a_job_that_is_being_deleted_is_not_the_same_job(server: FakeServer) -> None:
    at = "2026-01-01T00:00:00Z"
    server.jobs["red-grpo-cluster"] = {**document(), "metadata": {"name": "red-grpo-cluster", "deletionTimestamp": at}}
    message = server.fails(2, "submit", str(EXAMPLE))
    assert message.endswith(f"red-grpo-cluster is being deleted since {at}; submit it again when it is gone\n")


def test_the_policy_of_the_operator_refuses_before_the_job_is_sent(server: FakeServer) -> None:
    server.jobs.clear()
    policy = json.dumps({"serviceAccounts": ["default"]})
    elsewhere = deployment("omni", POD_POLICY=policy, NAMESPACES="other")
    operators = [elsewhere, deployment("omni2", POD_POLICY=policy, IMAGE="a:1")]
    server.objects["/apis/apps/v1/deployments"] = 200, {"items": operators}
    refused = server.drl("submit", str(EXAMPLE), "--set=spec.runtime.serviceAccountName=admin")
    assert (refused.exit_code, "spec.runtime.serviceAccountName" in refused.stderr) == (2, True), refused.output
    assert server.posts == []
    notes = server.drl("submit", str(EXAMPLE)).stderr.splitlines()
    assert all("more than ten times" in note or "Flow-GRPO uses" in note for note in notes), "warnings of its recipe"


def test_without_the_policy_the_job_is_sent_with_a_note(server: FakeServer) -> None:
    server.jobs.clear()
    server.objects["/apis/apps/v1/deployments"] = 403, {"message": "User u cannot list deployments"}
    done = server.drl("submit", str(EXAMPLE), "--set=spec.runtime.serviceAccountName=admin")
    assert (done.exit_code, len(server.posts)) == (0, 1)
    assert "note: refused unless the operator's policy allows it: --set spec.runtime.serviceAccountName" in done.stderr
    assert "checked without the operator's policy" in done.stderr
    assert "User u cannot list deployments" in done.stderr


def test_a_deployment_of_another_version_or_namespace_has_no_settings() -> None:
    with pytest.raises(SettingsUnreadable, match="watches namespace team"):
        select_settings([deployment("omni", NAMESPACES="a,b")], "team")
    assert select_settings([deployment("omni", NAMESPACES="a,team", IMAGE="i:1")], "team").image == "i:1"


def test_a_deployment_of_another_namespace_does_not_replace_the_operator(server: FakeServer) -> None:
    server.jobs.clear()
    real = deployment("omni-system", POD_POLICY=json.dumps({"serviceAccounts": ["default"]}), IMAGE="a:1")
    submit = ("submit", str(EXAMPLE), "--set=spec.runtime.serviceAccountName=admin")
    for impostor in (deployment("a-tenant", IMAGE="evil:1"), deployment("a-tenant", X="1")):
        for operators in ([impostor, real], [real, impostor]):
            server.objects["/apis/apps/v1/deployments"] = 200, {"items": operators}
            done = server.drl(*submit)
            assert (done.exit_code, server.posts) == (2, []), done.output
            assert "2 Deployments may be the operator of namespace team: a-tenant/omni, omni-system/omni" in done.stderr
            assert "--settings FILE.yaml" in done.stderr
            with pytest.raises(AmbiguousOperator):
                select_settings(operators, "team")
    assert select_settings([deployment("a-tenant", NAMESPACES="a-tenant"), real], "team").image == "a:1"


def test_defaults_that_the_api_server_adds_make_no_difference() -> None:
    job = load_job(EXAMPLE).job
    spec = job.spec.model_dump(mode="json", by_alias=True, exclude_none=True)
    stored = {**document(), "spec": spec, "status": {"x": 1}}
    stored["metadata"] = {**stored["metadata"], "uid": "u", "managedFields": [], "labels": {"added": "later"}}
    assert find_differences(document(), stored) == ()
    stored["spec"]["suspend"] = True
    assert find_differences(document(), stored) == ()


def test_differences_name_field_and_both_values() -> None:
    stored = document()
    stored["spec"]["seed"] = 9
    stored["spec"]["trainer"]["totalSteps"] = 1
    differences = find_differences(document(), stored)
    assert differences[0] == f"spec.seed (9 there, {load_job(EXAMPLE).job.spec.seed} here)"
    assert len(differences) == 2
    bare = document()
    del bare["spec"]["rollout"]["sampler"]["window"]
    (of_the_window,) = find_differences(document(), bare)
    assert of_the_window.startswith("spec.rollout.sampler.window (none there, {")
    (of_the_window,) = find_differences(bare, document())
    assert of_the_window.startswith("spec.rollout.sampler.window ({")
    labelled = document()
    labelled["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "a"}
    assert find_differences(labelled, document()) == ("metadata.labels.kueue.x-k8s.io/queue-name (none there, a here)",)
    assert find_differences(document(), {**document(), "spec": {"old": 1}}) == (UNREADABLE,)

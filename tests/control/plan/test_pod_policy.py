"""What jobs' pods may do is decided by the operator's setting, and refused with the chart value that allows it."""

import json
from typing import Any

import pytest
from pydantic import ValidationError

from control.api import job_documents
from control.plan import rendered_objects, templates_and_policies
from control.plan.rendered_objects import SETTINGS, SPEC, make_job
from e2e.random_documents import jobs
from omni_operator import plan
from omni_operator.api import DiffusionRLJob, JobError
from omni_operator.api.names import report_audience
from omni_operator.api.spec.pod_schema import TOLD, find_errors
from omni_operator.plan.pod_policy import PodPolicy
from omni_operator.plan.pod_rules import find_breaches
from omni_operator.plan.pods.head import render_head_group
from omni_operator.plan.pods.workers import render_worker_groups


def refusals(job: DiffusionRLJob, **policy: Any) -> list[str]:
    return rendered_objects.refusals(job, SETTINGS.model_copy(update={"pod_policy": PodPolicy.model_validate(policy)}))


def with_template(role: str, template: Any) -> DiffusionRLJob:
    placement = "Separate" if role == "rollout" else "Colocated"
    return make_job(f"spec.rollout.placement={placement}", f"spec.{role}.podTemplate={json.dumps(template)}")


@pytest.mark.parametrize("role", ["head", "trainer", "rollout"])
def test_a_refused_template_names_the_chart_value_that_allows_it(role: str) -> None:
    for name, (template, policy) in {**templates_and_policies.LIFTED, **templates_and_policies.STRICTER}.items():
        job = with_template(role, template)
        texts = refusals(job)
        assert texts, name
        assert all(text.startswith(f"spec.{role}.podTemplate") for text in texts), (name, texts)
        for value in policy:
            assert any(f"(jobs.podPolicy.{value} of the chart" in text for text in texts), (name, texts)
        assert refusals(job, **policy) == [], name


def test_what_no_value_allows_and_what_needs_none() -> None:
    lax = {
        "runAsRoot": True,
        "privileged": True,
        "privilegeEscalation": True,
        "capabilities": ["ALL"],
        "nodeName": True,
        "hostNamespaces": ["Network", "IPC", "PID"],
        "hostPaths": [{"path": "/", "readOnly": False}],
        "serviceAccounts": ["*"],
        "serviceAccountTokens": True,
    }
    for name, template in templates_and_policies.NEVER.items():
        assert len(refusals(with_template("head", template), **lax)) == 1, name
    for name, template in templates_and_policies.ALLOWED.items():
        assert refusals(with_template("trainer", template)) == [], name


@pytest.mark.parametrize(
    ("template", "at"),
    [
        (
            {"containers": [{"name": "a", "image": "x"}, {"name": "b", "securityContext": {"runAsUser": 0}}]},
            ".containers[1].securityContext.runAsUser",
        ),
        (
            {"volumes": [{"name": "a", "emptyDir": {}}, {"name": "b", "hostPath": {"path": "/"}}]},
            ".volumes[1].hostPath",
        ),
        ({"securityContext": {"runAsNonRoot": None}}, ""),
        (
            {"containers": [{"name": "ray", "envFrom": [{"secretRef": {"name": "root-token"}}]}]},
            ".containers[0].envFrom[0]",
        ),
    ],
)
def test_a_refusal_names_the_line_of_the_author(template: Any, at: str) -> None:
    texts = refusals(with_template("trainer", {"spec": template}), secrets=["hf-*"])
    assert any(text.startswith(f"spec.trainer.podTemplate.spec{at}") for text in texts), texts


def test_variables_that_a_download_shares_with_the_main_container_are_refused_once() -> None:
    env = [{"name": "HF_TOKEN", "valueFrom": {"secretKeyRef": {"name": "s1", "key": "k"}}}]
    template = {"spec": {"containers": [{"name": "ray", "env": env}]}}
    job = make_job("spec.model.base=a/b", f"spec.trainer.podTemplate={json.dumps(template)}")
    (refusal,) = refusals(job, secrets=["hf-*"])
    assert refusal.startswith("spec.trainer.podTemplate.spec.containers[0].env[0]: the Secret 's1' is not allowed")


def test_every_secret_and_service_account_of_a_job_is_checked() -> None:
    source = {"secretRef": {"name": "s6"}, "driver": "d"}
    template = {
        "imagePullSecrets": [{"name": "s1"}],
        "containers": [
            {
                "name": "ray",
                "env": [{"name": "A", "valueFrom": {"secretKeyRef": {"name": "s2", "key": "k"}}}],
                "envFrom": [{"secretRef": {"name": "s3"}}],
            }
        ],
        "volumes": [
            {"name": "a", "secret": {"secretName": "s4"}},
            {"name": "b", "projected": {"sources": [{"secret": {"name": "s5"}}]}},
            {"name": "c", "flexVolume": source},
            {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "s7"}}},
            {"name": "e", "csi": {"driver": "smb.csi.k8s.io", "volumeAttributes": {"secretName": "s11"}}},
        ],
    }
    job = make_job(
        f"spec.trainer.podTemplate={json.dumps({'spec': template})}",
        "spec.runtime.imagePullSecrets=[{name: s8}]",
        "spec.runtime.serviceAccountName=other",
        "spec.model={base: a/b, tokenSecretRef: {name: s9, key: k}}",
        "spec.observability.tracking={loggers: [wandb], wandbSecretRef: {name: s10, key: k}}",
    )
    texts = refusals(job, secrets=["hf-*"])
    for number in range(1, 12):
        assert len([text for text in texts if f"the Secret 's{number}' is not allowed" in text]) == 1, number
    assert any("spec.runtime.serviceAccountName: the service account 'other' is not allowed" in text for text in texts)
    everything = [*PodPolicy().volume_types, "flexVolume"]
    assert refusals(job, serviceAccounts=["other"], volumeTypes=everything) == []


@pytest.mark.parametrize(
    ("spec", "allowed", "refused"),
    [
        ({}, ["ours"], {"serviceAccountName": "default"}),
        ({"serviceAccountName": ""}, ["ours"], {"serviceAccountName": "default"}),
        ({"serviceAccount": "other"}, ["default"], {"serviceAccount": "other"}),
        ({"serviceAccount": "other", "serviceAccountName": "ours"}, ["ours"], {"serviceAccount": "other"}),
        ({"serviceAccount": "ours"}, ["ours"], {}),
    ],
    ids=str,
)
def test_a_pods_service_account_is_the_one_of_either_name_or_the_default(
    spec: dict[str, str], allowed: list[str], refused: dict[str, str]
) -> None:
    policy = PodPolicy.model_validate({"serviceAccounts": allowed, "serviceAccountTokens": True})
    breaches = [
        breach for breach in find_breaches({"spec": spec}, policy, "audience") if "service account" in breach.text
    ]
    assert {breach.at[-1]: breach.text.split("'")[1] for breach in breaches} == refused


@pytest.mark.parametrize(
    ("path", "read_only", "kind", "allowed"),
    [
        ("/usr/local/Ascend", True, "", True),
        ("/usr/local/Ascend/driver", True, "Directory", True),
        ("/usr/local/Ascend2", True, "", False),
        ("/usr/local", True, "", False),
        ("/usr/local/Ascend/../../..", True, "", False),
        ("/usr/local/Ascend", False, "", False),
        ("/usr/local/Ascend", True, "DirectoryOrCreate", False),
        ("//usr/local//Ascend/", True, "", True),
    ],
)
def test_a_path_of_the_node_is_allowed_with_what_is_below(path: str, read_only: bool, kind: str, allowed: bool) -> None:
    mount = {"name": "v", "mountPath": "/v", "readOnly": read_only}
    template = {
        "containers": [{"name": "ray", "volumeMounts": [mount]}],
        "volumes": [{"name": "v", "hostPath": {"path": path, "type": kind}}],
    }
    texts = refusals(with_template("head", {"spec": template}), hostPaths=[{"path": "/usr/local/Ascend/"}])
    assert (texts == []) == allowed, texts


def test_the_operators_own_pods_satisfy_the_default_policy() -> None:
    """So a job without a template needs no check of its pods."""
    settings = plan.ClusterSettings(image="i", report_url="http://r")
    checked = 0
    for document in jobs(2, 60, SPEC, job_documents):
        for role in ("head", "trainer", "rollout"):
            if isinstance(inner := document["spec"].get(role), dict):
                inner.pop("podTemplate", None)
        if isinstance(runtime := document["spec"].get("runtime"), dict):
            runtime.pop("serviceAccountName", None)
        try:
            job = DiffusionRLJob.model_validate(document)
        except ValidationError:
            continue
        audience = report_audience("default", job.metadata.name)
        for group in (render_head_group(job, 1, settings), *render_worker_groups(job, 1, settings)):
            checked += 1
            assert list(find_breaches(group["template"], PodPolicy(), audience)) == []
    assert checked > 20


@pytest.mark.parametrize(
    ("policy", "said"),
    [
        ({"volumeTypes": ["secret"]}, "must contain downwardAPI, emptyDir"),
        ({"volumeTypes": [*PodPolicy().volume_types, "hostPath"]}, "list its paths in hostPaths"),
        ({"seccompProfiles": ["Localhost"]}, "must contain RuntimeDefault"),
    ],
)
def test_a_policy_must_allow_the_operators_own_pods(policy: Any, said: str) -> None:
    with pytest.raises(ValidationError) as caught:
        PodPolicy.model_validate(policy)
    assert said in str(caught.value.errors()[0]["ctx"]["violations"])


@pytest.mark.slow
def test_one_hundred_errors_of_a_template_are_told() -> None:
    """A spec of 240 KiB can have tens of thousands, and all jobs wait until they are found and told."""
    many = 2_000
    sysctls = [{"name": f"kernel.{number}", "value": "1"} for number in range(many)]
    job = with_template("trainer", {"spec": {"securityContext": {"sysctls": sysctls}}})
    assert sum("sysctls" in text for text in refusals(job)) == TOLD
    with pytest.raises(JobError) as error:
        with_template("trainer", {"spec": {f"host{number}": 1 for number in range(many)}})
    assert len(error.value.problems) == TOLD


@pytest.mark.slow
@pytest.mark.timeout(60)  # comparing each with all others would take minutes
def test_lists_with_many_entries_are_checked_in_proportion_to_their_length() -> None:
    ports = [{"containerPort": 1 + number % 65535, "protocol": f"{number // 65535}"} for number in range(100_000)]
    template = {"spec": {"containers": [{"name": "ray", "ports": [*ports, ports[0]]}]}}
    assert [error.text for error in find_errors(template, complete=False)] == ["is in the list already"]


def test_a_refusal_names_the_field_of_a_reward_template() -> None:
    template = {"spec": {"hostNetwork": True, "volumes": [{"name": "v", "persistentVolumeClaim": {"claimName": "c"}}]}}
    job = make_job(
        "spec.reward.model.base=./judge",
        "spec.reward.model.placement=Separate",
        f"spec.reward.model.podTemplate={json.dumps(template)}",
    )
    texts = refusals(job)
    assert [text.partition(": ")[0] for text in texts] == [
        "spec.reward.model.podTemplate.spec.volumes[0]",
        "spec.reward.model.podTemplate.spec.hostNetwork",
    ]

"""`drl` on a real API server, as users with the roles of Kubernetes and an exec plug-in."""

import json
from pathlib import Path

import pytest

from e2e import helm
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.drl import Drl, drl_of
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator
from omni_operator.api import load_job
from omni_operator.client import Client, FieldNotServed

pytestmark = pytest.mark.cluster
JOB = """\
apiVersion: diffusionrl.io/v1alpha1
kind: DiffusionRLJob
metadata: {name: red}
spec:
  model: {base: /models/shapes-sd3}
  data: {train: [/data/prompts.jsonl]}
  reward: {scorers: [{name: color}]}
  trainer: {totalSteps: 10, accelerator: {vendor: NVIDIA}}
  rollout: {replicas: 1}
  checkpoint: {claimName: ckpt}
"""
POLICY = {"serviceAccounts": ["default"]}


@pytest.fixture
def drl(installed: ControlPlane, namespace: str, tmp_path: Path) -> Drl:
    return drl_of(installed, namespace, "edit", tmp_path)


@pytest.fixture
def job_file(tmp_path: Path) -> Path:
    path = tmp_path / "job.yaml"
    path.write_text(JOB)
    return path


def test_the_life_of_a_job_from_the_terminal(
    running: RunningOperator, installed: ControlPlane, api: Api, namespace: str, drl: Drl, job_file: Path
) -> None:
    def kubectl(*arguments: str) -> str:
        return installed.kubectl(*arguments, f"--namespace={namespace}", f"--kubeconfig={drl.kubeconfig}")

    job = JobOnPlane(api, namespace)
    assert drl("suspend", "red").stderr.startswith(f"no job 'red' in namespace {namespace}")
    submitted = drl("submit", job_file)
    assert (submitted.exit_code, submitted.stdout) == (0, f"red created in namespace {namespace}\n"), submitted.output
    job.run(1)
    job.await_condition("Ready", "True")
    assert kubectl("get", "drl").splitlines()[1].split()[:2] == ["red", "Running"]
    assert "Nothing holds it" in drl("why", "red").stdout
    assert drl("suspend", "red").stdout == "red: suspension requested\n"
    kubectl("wait", "--for=condition=Suspended", "--timeout=60s", "drl/red")
    assert "drl resume continues" in drl("why", "red").stdout
    assert drl("resume", "red").stdout == "red: resumed\n"
    job.run(2)
    job.end(2)
    kubectl("wait", "--for=condition=Succeeded", "--timeout=60s", "drl/red")
    kubectl("delete", "drl", "red")
    job.await_gone()
    assert drl.plugin.runs > 0


def test_a_job_is_created_once_and_another_one_of_its_name_is_refused(
    installed: ControlPlane, api: Api, namespace: str, drl: Drl, job_file: Path
) -> None:
    tried = drl("submit", job_file, "--dry-run")
    assert (tried.exit_code, tried.stdout) == (0, f"red would be created in namespace {namespace}\n"), tried.output
    assert api.get(JobOnPlane(api, namespace).path)["items"] == []
    first = json.loads(drl("submit", job_file, "--json").stdout)
    again = drl("submit", job_file)
    assert (first["created"], again.exit_code) == (True, 0), again.output
    assert again.stdout.startswith(f"red exists in namespace {namespace} with the same spec: ")
    assert again.stdout.endswith("; nothing was created\n")
    third = json.loads(drl("submit", job_file, "--json").stdout)
    assert (third["created"], third["job"]["metadata"]["uid"]) == (False, first["job"]["metadata"]["uid"])
    drl("suspend", "red")
    assert "nothing was created" in drl("submit", job_file).stdout, "a suspended job is the same job"
    differing = drl("submit", job_file, "--set=spec.trainer.totalSteps=20", "--set=spec.seed=7")
    assert (differing.exit_code, differing.stdout) == (2, "")
    assert "differs in spec.seed (0 there, 7 here), spec.trainer.totalSteps (10 there, 20 here)" in differing.stderr
    assert "--set metadata.name=NAME" in differing.stderr
    assert drl("submit", job_file, "--set=metadata.name=blue", "--set=spec.seed=7").exit_code == 0
    assert [item["metadata"]["name"] for item in api.get(JobOnPlane(api, namespace).path)["items"]] == ["blue", "red"]


def test_a_job_is_checked_before_it_is_created(
    installed: ControlPlane, api: Api, namespace: str, drl: Drl, job_file: Path, tmp_path: Path
) -> None:
    wrong = tmp_path / "wrong.yaml"
    wrong.write_text(JOB.replace("totalSteps", "totalStep"))
    checked = drl("submit", wrong)
    assert (checked.exit_code, f"{wrong}:8: spec.trainer.totalStep: unknown field" in checked.stderr) == (2, True)
    refused = drl("submit", job_file, "-n", "other", "--set=metadata.namespace=team")
    assert (refused.exit_code, refused.stderr) == (
        2,
        f"{job_file}: metadata.namespace is team, and --namespace is other\n",
    )
    forbidden = drl("submit", job_file, "-n", "kube-system")
    assert (forbidden.exit_code, "cannot create resource" in forbidden.stderr) == (1, True)
    settings = tmp_path / "settings.yaml"
    settings.write_text("image: rollout:1\npodPolicy: {serviceAccounts: [default]}\n")
    account = drl("submit", job_file, "--set=spec.runtime.serviceAccountName=admin", f"--settings={settings}")
    assert (account.exit_code, "spec.runtime.serviceAccountName" in account.stderr) == (2, True), account.output
    client = Client.from_kubeconfig(str(drl.kubeconfig))
    body = load_job(job_file).document.plain()
    with pytest.raises(
        FieldNotServed, match=r'unknown field "spec\.newer"; nothing was changed: the definition of jobs'
    ):
        client.submit({**body, "spec": {**body["spec"], "newer": 1}})
    assert api.get(JobOnPlane(api, namespace).path)["items"] == []


def test_the_policy_of_the_operator_is_read_where_the_user_may(
    installed: ControlPlane, api: Api, namespace: str, drl: Drl, job_file: Path
) -> None:
    (deployment,) = helm.rendered(
        helm.helm(),
        "--show-only=templates/deployment.yaml",
        "--set=replicas=1,jobs.image=rollout:1",
        f"--set-json=jobs.podPolicy={json.dumps(POLICY)}",
        f"--set=watch.namespaces={{{namespace}}}",
        namespace=namespace,
    )
    api.post(f"/apis/apps/v1/namespaces/{namespace}/deployments", deployment)
    account = "--set=spec.runtime.serviceAccountName=admin"
    unread = drl("submit", job_file, account, "--dry-run")
    assert unread.exit_code == 0
    assert "checked without the operator's policy" in unread.stderr
    admin = Drl(installed.kubeconfig, drl.plugin)
    read = admin("submit", job_file, account, "--dry-run", "-n", namespace)
    assert read.exit_code == 2
    assert (
        read.stderr.startswith(f"{job_file}: spec.runtime.serviceAccountName: ") or "serviceAccountName" in read.stderr
    )
    good = admin("submit", job_file, "--dry-run", "-n", namespace)
    assert (good.exit_code, good.stderr) == (0, "")


def test_a_user_who_may_only_look_is_told_what_is_missing(
    installed: ControlPlane, api: Api, namespace: str, job_file: Path, tmp_path: Path
) -> None:
    JobOnPlane(api, namespace).submit()
    viewer = drl_of(installed, namespace, "view", tmp_path)
    assert viewer("why", "red").stdout.startswith("red is ")
    for command in (("submit", job_file, "--set=metadata.name=blue"), ("suspend", "red")):
        refused = viewer(*command)
        assert (refused.exit_code, "is forbidden" in refused.stderr.splitlines()[-1]) == (1, True), refused.output


# Command -> the right that a user without any lacks, and one who may only read jobs.
LACKING = {
    ("why", "red"): ("get diffusionrljobs", ""),
    ("watch", "red"): ("get diffusionrljobs", ""),
    ("logs", "red"): ("get diffusionrljobs", "list pods"),
    ("logs", "red", "--follow"): ("get diffusionrljobs", "list pods"),
    ("fetch", "red"): ("get diffusionrljobs", "list pods"),
    ("open", "red", "--port=0"): ("get diffusionrljobs", "list pods"),
    ("open", "red", "--report"): ("get diffusionrljobs", "list pods"),
    ("suspend", "red"): ("get diffusionrljobs", "patch diffusionrljobs"),
    ("scale", "red", "--replicas=2"): ("get diffusionrljobs", "patch diffusionrljobs"),
    ("submit", "JOB", "--set=metadata.name=blue"): ("create diffusionrljobs", "create diffusionrljobs"),
}


def test_every_command_names_the_right_that_is_missing(
    installed: ControlPlane, api: Api, namespace: str, job_file: Path, tmp_path: Path
) -> None:
    job = JobOnPlane(api, namespace, spec={"managedBy": "kueue.x-k8s.io/multikueue"})  # the test writes its status
    job.submit()
    ended = {"type": "Succeeded", "status": "True", "reason": "AttemptSucceeded", "message": ""}
    api.patch(f"{job.own_path}/status", {"status": {"state": "Running", "attempts": 1}})
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/roles"
    reads = [{"apiGroups": ["diffusionrl.io"], "resources": ["diffusionrljobs"], "verbs": ["get", "list"]}]
    for column, (name, rules) in enumerate((("nothing", []), ("reads-jobs", reads))):
        api.post(roles, {"metadata": {"name": name}, "rules": rules})
        user = drl_of(installed, namespace, name, tmp_path, kind="Role")
        for command, lacking in LACKING.items():
            if not (right := lacking[column]):
                continue
            done = user(*(job_file if word == "JOB" else word for word in command))
            verb, resource = right.split()
            line = done.stderr.splitlines()[-1]
            assert (done.exit_code, f'cannot {verb} resource "{resource}"' in line) == (1, True), (command, done.output)
            assert line.endswith("ask for this right: docs/reference/cli.md lists each command's rights"), command
    assert user("why", "red").stdout.startswith("red is Running")
    assert user("why", "blue").stderr.startswith("no job 'blue' in namespace")
    api.patch(f"{job.own_path}/status", {"status": {"state": "Succeeded", "conditions": [ended]}})
    watched = user("watch", "red", "--plain")
    assert (watched.exit_code, "events are not shown: " in watched.stderr) == (0, True), watched.output
    assert [item["metadata"]["name"] for item in api.get(job.path)["items"]] == ["red"]


def test_an_exec_plugin_that_fails_is_an_unusable_kubeconfig(drl: Drl) -> None:
    drl.plugin.fail()
    failed = drl("why", "red")
    assert failed.exit_code == 2
    assert failed.stderr.splitlines()[-1].startswith(
        "cannot use the kubeconfig: user 'e2e' has no credentials in it for 'https://"
    )


def test_why_names_a_pod_that_no_node_can_run_and_the_right_that_is_missing(
    running: RunningOperator, installed: ControlPlane, api: Api, namespace: str, drl: Drl, tmp_path: Path
) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    cluster = api.get(job.cluster_path(1))["metadata"]
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster["name"], "uid": cluster["uid"]}
    limits = {"resources": {"limits": {"nvidia.com/gpu": "99"}}}
    api.post(
        f"/api/v1/namespaces/{namespace}/pods",
        {
            "metadata": {
                "name": f"{job.attempt(1)}-x1-big",
                "labels": cluster["labels"],
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {"containers": [{"name": "ray", "image": "rollout:1", **limits}]},
        },
    )
    deadlines.wait_until("the scheduler's verdict", JOB_SEEN, lambda: "Unschedulable: " in drl("why", "red").stdout)
    why = drl("why", "red").stdout
    assert f"Pod {job.attempt(1)}-x1-big (created " in why
    assert "Insufficient nvidia.com/gpu" in why
    assert "Not read" not in why
    rules = [{"apiGroups": ["diffusionrl.io"], "resources": ["diffusionrljobs"], "verbs": ["get", "list"]}]
    roles = f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}"
    api.post(f"{roles}/roles", {"metadata": {"name": "jobs-only"}, "rules": rules})
    few = drl_of(installed, namespace, "jobs-only", tmp_path, kind="Role")("why", "red").stdout
    assert 'cannot list resource "pods"' in few
    assert 'cannot list resource "events"' in few
    assert few.startswith("red is Running")


def test_a_job_whose_claim_no_storage_class_serves_says_so(
    running: RunningOperator, api: Api, namespace: str, drl: Drl
) -> None:
    job = JobOnPlane(api, namespace)
    job.submit()
    cluster = api.get(job.ray("rayclusters", job.add_cluster(1)))["metadata"]
    starting = {"jobDeploymentStatus": "Initializing", "rayClusterName": cluster["name"]}
    api.patch(f"{job.ray('rayjobs', job.attempt(1))}/status", {"status": starting})
    owner = {"apiVersion": "ray.io/v1", "kind": "RayCluster", "name": cluster["name"], "uid": cluster["uid"]}
    size = {"accessModes": ["ReadWriteMany"], "resources": {"requests": {"storage": "1Gi"}}}
    core = f"/api/v1/namespaces/{namespace}"
    api.post(f"{core}/persistentvolumeclaims", {"metadata": {"name": "ckpt"}, "spec": size})
    api.post(
        f"{core}/pods",
        {
            "metadata": {
                "name": f"{cluster['name']}-head",
                "labels": cluster["labels"],
                "ownerReferences": [{**owner, "controller": True}],
            },
            "spec": {
                "containers": [{"name": "ray", "image": "rollout:1"}],
                "volumes": [{"name": "runs", "persistentVolumeClaim": {"claimName": "ckpt"}}],
            },
        },
    )
    message = job.await_condition("Ready", "False", "ClaimNotBound")["message"]
    assert "unbound immediate PersistentVolumeClaims" in message
    why = drl("why", "red").stdout
    assert ("storageclass" in why, "Ask for less" in why) == (True, False), why


def test_watch_shows_events_and_ends_with_the_job(running: RunningOperator, api: Api, namespace: str, drl: Drl) -> None:
    job = JobOnPlane(api, namespace)
    job.start()
    job.await_events("Running")
    job.end(1)
    job.await_condition("Succeeded", "True")
    job.await_events("Succeeded")
    lines = [json.loads(line) for line in drl("watch", "red", "--json").stdout.splitlines()]
    assert [line["reason"] for line in lines if line["kind"] == "event"] == ["Running", "Succeeded"]
    assert lines[-1]["state"] == "Succeeded"

"""Training in Ray pods: operator, KubeRay, kubelets and Ray are real; only the accelerators are fake."""

import base64
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import httpx2
import pytest
from click.testing import Result

from e2e import prometheus
from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.drl import opened, run_drl
from e2e.hub_server import TOKEN, Hub, hub_server
from e2e.jobs import Job, condition
from e2e.system import System
from e2e.training_jobs import EXAMPLES, example, metrics, node_of, the_pod

pytestmark = [pytest.mark.bare, pytest.mark.timeout(2400)]

NAME = "red-grpo-cluster"
LABEL = f"diffusionrl.io/job={NAME}"
# Fewer steps than the example, with a larger learning rate.
STEPS = 12
LEARNING_RATE = 0.01
RISE = 0.03
LOST = 24  # steps of the run whose head is deleted: it must still be running then
# Generous: on two cores a pod's Ray takes a minute to start, and a step some seconds.
FIRST_STEP = 420.0
WHOLE_RUN = 1500.0
GONE = 60.0
SAVED = 120.0
HEAD_SEEN = 120.0


@pytest.fixture
def run(system: System, space: str) -> Path:
    """The run folder, in the volume of the example's claim."""
    return system.claim(space, "runs") / NAME


@pytest.fixture
def pod_monitors(system: System) -> Iterator[None]:
    """The cluster has the kind PodMonitor, as with the Prometheus operator."""
    meta = {"name": "podmonitors.monitoring.coreos.com"}
    names = {"kind": "PodMonitor", "listKind": "PodMonitorList", "plural": "podmonitors", "singular": "podmonitor"}
    schema = {"openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}}
    versions = [{"name": "v1", "served": True, "storage": True, "schema": schema}]
    spec = {"group": "monitoring.coreos.com", "scope": "Namespaced", "names": names, "versions": versions}
    body = {"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition", "metadata": meta, "spec": spec}
    system.cluster.kubectl("apply", "--server-side", "--filename=-", text=json.dumps(body))
    system.cluster.kubectl("wait", "--for=condition=Established", f"crd/{meta['name']}", "--timeout=30s")
    yield
    system.cluster.kubectl("delete", f"crd/{meta['name']}")


def shortened() -> str:
    """The example with fewer and larger steps, and a PodMonitor."""
    text = (EXAMPLES / f"{NAME}.yaml").read_text(encoding="utf-8")
    for name, value in (("totalSteps", STEPS), ("learningRate", LEARNING_RATE), ("evalEverySteps", STEPS)):
        text, count = re.subn(rf"^(    {name}: ).+$", rf"\g<1>{value}", text, flags=re.MULTILINE)
        assert count == 1, name
    return f"{text}\n  observability:\n    podMonitor: {{enabled: true, interval: 2s}}\n"


def held_out_before(run: Path) -> float:
    """The reward of the held-out prompts before the first step."""
    reward: float = next(line["val/reward/mean"] for line in metrics(run) if line["step"] == 0)
    return reward


def steps(run: Path) -> list[dict[str, Any]]:
    """Metrics of each step, without the evaluation before the first."""
    return [line for line in metrics(run) if line["step"] > 0]


def items(api: Api, space: str, plural: str, group: str = "") -> list[dict[str, Any]]:
    """The objects of a kind that carry the job's label."""
    root = f"/apis/{group}" if group else "/api/v1"
    objects: list[dict[str, Any]] = api.get(f"{root}/namespaces/{space}/{plural}", labelSelector=LABEL)["items"]
    return objects


def await_step(job: Job, step: int) -> dict[str, Any]:
    def there(status: dict[str, Any]) -> bool:
        assert not status.get("failures"), status["failures"]
        return (status.get("progress", {}).get("globalStep") or 0) >= step

    return job.await_status(f"step {step}", there, FIRST_STEP)


@pytest.mark.every_run
def test_apply_trains_to_the_end_on_a_pool_of_gpus(
    system: System, api: Api, space: str, run: Path, tmp_path: Path, pod_monitors: None
) -> None:
    """The main job: `kubectl apply` of the example, and its status."""
    system.cluster.kubectl("apply", f"--namespace={space}", "--filename=-", text=shortened())
    job = Job(api, space, NAME)
    first = await_step(job, 1)
    assert first["progress"]["totalSteps"] == STEPS
    worker = the_pod(api, space, NAME, "trainer")
    assert worker["spec"]["nodeName"] == node_of(api, "nvidia")
    assert worker["spec"]["containers"][0]["resources"]["limits"]["nvidia.com/gpu"] == "1"
    # The trainer's output is in the pod's log.
    printed = system.cluster.kubectl("logs", f"--namespace={space}", worker["metadata"]["name"])
    assert "\nstep 1: reward" in printed
    look_from_a_terminal(system, api, space, tmp_path)
    scrape(system, api, space, tmp_path)
    # Replacing the operator during the run does not affect the job.
    system.install("--set=podAnnotations.e2e=upgraded")
    job.await_condition("Succeeded", "True", within=WHOLE_RUN)
    status = job.status()
    written = steps(run)
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    assert [row["step"] for row in written] == list(range(1, STEPS + 1))
    last = written[-1]
    assert status["progress"]["globalStep"] == STEPS
    assert status["progress"]["percent"] == 100
    assert status["progress"]["reward"] == pytest.approx(last["reward/mean"])
    assert status["progress"]["validationReward"] == pytest.approx(last["val/reward/mean"])
    assert status["weights"]["trainerVersion"] == last["weights/version"] == STEPS
    assert (status["weights"]["minReplicaVersion"], status["weights"]["lag"]) == (STEPS, 0)
    assert status["progress"]["samples"] == STEPS * 4 * 8
    assert last["val/reward/mean"] > held_out_before(run) + RISE, "the reward did not rise"
    assert f"\nstep {STEPS}: reward" in (run / "train.log").read_text(encoding="utf-8")
    assert "Plotly.newPlot" in (run / "report.html").read_text(encoding="utf-8")
    assert (run / "checkpoints").is_dir()
    deadlines.wait_until("the pods to end", GONE, lambda: not items(api, space, "pods"))
    fetch_from_the_claim(system, api, space, run, tmp_path)


def look_from_a_terminal(system: System, api: Api, space: str, folder: Path) -> None:
    """`drl logs`, `drl open` and `drl fetch` while the job runs."""

    def drl(*arguments: str) -> Result:
        return run_drl(system.kubeconfig, *arguments, f"--namespace={space}")

    assert "\nstep 1: reward" in drl("logs", NAME).stdout
    fetched = drl("fetch", NAME, f"--to={folder / 'running'}", "--json")
    assert {"metrics.jsonl", "train.log"} <= {*json.loads(fetched.stdout)["files"]}
    with opened(system.kubeconfig, NAME, space, folder) as dashboard:
        url = f"{dashboard['url']}/api/version"
        assert httpx2.get(url, trust_env=False).status_code == httpx2.codes.UNAUTHORIZED
        secret = api.get(f"/api/v1/namespaces/{space}/secrets/{dashboard['secret']}")
        token = base64.b64decode(secret["data"][dashboard["key"]]).decode()
        answer = httpx2.get(url, headers={"Authorization": f"Bearer {token}"}, trust_env=False)
        assert answer.json()["ray_version"] == "2.60.0"


def scrape(system: System, api: Api, space: str, folder: Path) -> None:
    """A real Prometheus finds the pods by the job's PodMonitor, at the port that KubeRay adds to them."""
    (monitor,) = api.get(f"/apis/monitoring.coreos.com/v1/namespaces/{space}/podmonitors")["items"]
    scrape_config = prometheus.of_pod_monitor(monitor, api.get(f"/api/v1/namespaces/{space}/pods")["items"])
    with prometheus.running(prometheus.ensure(), scrape_config, folder) as server:
        server.await_data(
            [
                f'ray_omni_step{{diffusionrl_job="{NAME}",attempt="1",ray_node_type="worker"}} >= 1',
                'up{ray_node_type="head"} == 1',
            ]
        )


def fetch_from_the_claim(system: System, api: Api, space: str, run: Path, folder: Path) -> None:
    """`drl logs` and `drl fetch` when the pods are gone."""
    logs = run_drl(system.kubeconfig, "logs", NAME, f"--namespace={space}")
    assert (logs.exit_code, "mounts the claim runs" in logs.stderr) == (0, True), logs.output
    assert logs.stdout == click.unstyle((run / "train.log").read_text(encoding="utf-8")), "colors are for terminals"
    kept = folder / "ended"
    fetched = run_drl(system.kubeconfig, "fetch", NAME, f"--to={kept}", f"--namespace={space}")
    assert fetched.exit_code == 0, fetched.output
    for name in ("metrics.jsonl", "report.html", "train.log"):
        assert (kept / name).read_bytes() == (run / name).read_bytes()
    weights = sorted(path.name for path in kept.rglob("*.safetensors"))
    assert weights == ["adapter_model.safetensors", "pytorch_lora_weights.safetensors"]
    deadlines.wait_until(
        "the pod that read the claim to go", GONE, lambda: not api.get(f"/api/v1/namespaces/{space}/pods")["items"]
    )


def test_on_npus_a_lost_head_is_reported_and_the_next_attempt_succeeds(
    system: System, api: Api, space: str, run: Path
) -> None:
    """The model comes from a hub, and the results go there."""
    device = {"vendor": "Mock", "resourceName": "huawei.com/Ascend910", "preset": "Atlas-A2", "count": 1}
    job = Job(api, space, NAME)
    with hub_server(system.cluster.gateway) as hub:
        hub.create("team/base", model_files())
        api.post(
            f"/api/v1/namespaces/{space}/secrets", {"metadata": {"name": "hub"}, "stringData": {"HF_TOKEN": TOKEN}}
        )
        job.create(
            example(
                NAME,
                **from_and_to(hub),
                trainer__accelerator=device,
                trainer__totalSteps=LOST,
                trainer__evalEverySteps=LOST,
                checkpoint__everySteps=2,
            )
        )
        lose_the_head(api, space, run, job)
        status = job.status()
    sent = hub.files("team/adapters")
    (folder,) = {name.rpartition("/")[0] for name in sent if name.endswith(".safetensors") and f"{LOST:06d}" in name}
    assert json.loads(sent[f"{NAME}/latest.json"])["step"] == LOST, "the newest checkpoint was not sent"
    local = run / folder.removeprefix(f"{NAME}/") / "pytorch_lora_weights.safetensors"
    assert sent[f"{folder}/pytorch_lora_weights.safetensors"] == local.read_bytes()
    shown = condition(status, "OutputSent")
    assert (shown["status"], f"hf://team/adapters/{NAME}" in shown["message"]) == ("True", True), shown


def model_files() -> dict[str, bytes]:
    """The example's base model, as a repository has it."""
    folder = EXAMPLES / "shapes-sd3"
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def from_and_to(hub: Hub) -> dict[str, Any]:
    """What a job says to read its model from a hub, and to send its results there."""
    endpoint = {"name": "HF_ENDPOINT", "value": hub.endpoint}
    return {
        "model__base": "team/base",
        "model__tokenSecretRef": {"name": "hub", "key": "HF_TOKEN"},
        "trainer__podTemplate": {"spec": {"containers": [{"name": "ray", "env": [endpoint]}]}},
        "output": {"url": "hf://team/adapters"},
        "storage": {"secretName": "hub"},
    }


def lose_the_head(api: Api, space: str, run: Path, job: Job) -> None:
    """Delete the head pod of the first attempt, after a checkpoint; the second one succeeds."""
    saved = job.await_status("a checkpoint", lambda status: bool(status.get("checkpoint", {}).get("step")), FIRST_STEP)
    worker = the_pod(api, space, NAME, "trainer")
    assert worker["spec"]["nodeName"] == node_of(api, "ascend")
    rayjob = api.get(job.ray("rayjobs", job.attempt(1)))
    (group,) = rayjob["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    assert (group["resources"]["NPU"], "GPU" in group["resources"]) == ("1", False)
    head = the_pod(api, space, NAME, "headgroup")
    api.delete(f"/api/v1/namespaces/{space}/pods/{head['metadata']['name']}", gracePeriodSeconds="0")
    lost = job.await_status("the loss to be seen", lambda status: bool(status.get("failures")), HEAD_SEEN)
    assert (lost["failures"][0]["attempt"], lost["failures"][0]["reason"]) == (1, "HeadLost")
    job.await_condition("Succeeded", "True", within=WHOLE_RUN)
    status = job.status()
    assert (status["attempts"], status["failuresCounted"]) == (2, 1), status["failures"]
    assert [row["step"] for row in steps(run)] == list(range(1, LOST + 1))
    assert 2 <= saved["checkpoint"]["step"] <= resumed_from(run) < LOST


def test_a_suspended_and_a_preempted_job_save_a_checkpoint_resume_from_it_and_leave_nothing_when_deleted(
    api: Api, space: str, run: Path
) -> None:
    """The job has the label of a queue; the test suspends its RayJob as Kueue does to preempt it (test_kueue.py)."""
    job = Job(api, space, NAME)
    job.create(example(NAME, checkpoint__everySteps=100), {"kueue.x-k8s.io/queue-name": "team-a"})
    await_step(job, 2)
    api.patch(job.own_path, {"spec": {"suspend": True}})
    job.await_condition("Suspended", "True", within=FIRST_STEP)
    step = job.status()["checkpoint"]["step"]
    assert 2 <= step < 60
    deadlines.wait_until("the pods to end", GONE, lambda: not items(api, space, "pods"))
    api.patch(job.own_path, {"spec": {"suspend": False}})
    went_on = await_step(job, step + 1)
    assert went_on["attempts"] == 2
    resumed = resumed_from(run)
    assert resumed >= step
    saved = preempt(api, space, run, job)
    went_on = await_step(job, saved + 1)
    assert (went_on["attempts"], went_on.get("failures", [])) == (2, [])
    assert resumed_from(run) == saved
    step_numbers = [row["step"] for row in steps(run)]
    assert step_numbers == list(range(1, len(step_numbers) + 1))
    api.delete(job.own_path)
    deadlines.wait_until("everything to be gone", GONE, lambda: not left(api, job))
    assert (run / "checkpoints" / f"step_{saved:06d}").is_dir(), "the data stays"


def preempt(api: Api, space: str, run: Path, job: Job) -> int:
    """Suspend the RayJob as a queue does, wait until its pods have ended, and admit it again.

    Returns the step that was saved.
    """
    assert steps(run)[-1]["step"] > resumed_from(run), "there must be something to lose"
    rayjob = job.ray("rayjobs", job.attempt(2))
    api.patch(rayjob, {"spec": {"suspend": True}})
    job.await_condition("Admitted", "False", "Queued")
    deadlines.wait_until("the pods to end", SAVED, lambda: not items(api, space, "pods"))
    saved = checkpoints_of(run)[-1]
    assert saved == steps(run)[-1]["step"], "steps are lost"
    api.patch(rayjob, {"spec": {"suspend": False}})
    return saved


def checkpoints_of(run: Path) -> list[int]:
    """Steps with a complete checkpoint."""
    return sorted(int(path.parent.name.removeprefix("step_")) for path in run.glob("checkpoints/step_*/manifest.json"))


def resumed_from(run: Path) -> int:
    """The checkpoint that the last attempt began with."""
    reports = [json.loads(line) for line in (run / "progress.jsonl").read_text(encoding="utf-8").splitlines()]
    step: int = [event for event in reports if event["event"] == "start"][-1]["resumed_from"]
    return step


def left(api: Api, job: Job) -> dict[str, int]:
    """Number of objects of the job by kind; of kinds that KubeRay creates too, of its namespace."""
    space = job.namespace
    objects = {
        "networkpolicies": items(api, space, "networkpolicies", "networking.k8s.io/v1"),
        "rayjobs": items(api, space, "rayjobs", "ray.io/v1"),
        "rayclusters": items(api, space, "rayclusters", "ray.io/v1"),
        "jobs": api.get(job.path)["items"],
        **{kind: api.get(f"/api/v1/namespaces/{space}/{kind}")["items"] for kind in ("pods", "services", "secrets")},
    }
    return {kind: len(bodies) for kind, bodies in objects.items() if bodies}

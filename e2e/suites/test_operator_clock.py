"""An operator whose clock is ahead of the API server's, or behind it, and jumps."""

from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import RunningOperator, operator
from e2e.shifted_clock import ShiftedClock, shifted_clock

pytestmark = pytest.mark.cluster
MINUTES = 600
# Each job has a pass every half second, so the first one after a jump does not wait for an event.
SETTINGS = {"RESYNC_SECONDS": "0.5", "RETRY_SECONDS": "5"}


@pytest.fixture
def clock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ShiftedClock:
    shifted = shifted_clock(tmp_path)
    monkeypatch.setenv("OPERATOR_PYTHON", str(shifted.python))
    return shifted


def await_passes(running: RunningOperator, count: int) -> None:
    """Wait for as many passes more."""

    def made() -> float:
        families = text_string_to_metric_families(running.page("/metrics").text)
        samples = (sample for family in families for sample in family.samples)
        return sum(
            measured.value for measured in samples if measured.name == "diffusionrl_operator_reconcile_seconds_count"
        )

    enough = made() + count
    deadlines.wait_until(f"{count} passes", JOB_SEEN, lambda: made() >= enough)


def set_container(job: JobOnPlane, pod: str, state: dict[str, object], *, ready: bool) -> None:
    """Let the kubelet of a pod that runs say so about its container."""
    path = f"/api/v1/namespaces/{job.namespace}/pods/{pod}"
    deadlines.wait_until("the pod to run", JOB_SEEN, lambda: job.api.get(path)["status"]["phase"] == "Running")
    status = {"name": "main", "state": state, "image": "rollout:1", "imageID": "", "restartCount": 0, "ready": ready}
    condition = {"type": "Ready", "status": str(ready), "reason": "" if ready else "ContainersNotReady"}
    job.api.patch(f"{path}/status", {"status": {"containerStatuses": [status], "conditions": [condition]}})


def cannot_pull(job: JobOnPlane) -> None:
    """Its trainer pod waits for an image."""
    job.submit()
    job.add_cluster(1)
    name, _ = job.add_trainer(1)
    set_container(job, name, {"waiting": {"reason": "ErrImagePull", "message": "503"}}, ready=False)


@pytest.mark.parametrize("seconds", [-MINUTES, MINUTES], ids=["behind", "ahead"])
def test_a_clock_that_is_ten_minutes_off_changes_no_verdict_no_deadline_and_no_ttl(
    installed: ControlPlane, namespace: str, tmp_path: Path, api: Api, clock: ShiftedClock, seconds: int
) -> None:
    clock.shift(seconds)
    times = ("activeDeadlineSeconds", "preRunningDeadlineSeconds", "ttlSecondsAfterFinished")
    within = dict.fromkeys(times, MINUTES - 100)
    soon = dict.fromkeys(times, 5)
    jobs = [JobOnPlane(api, namespace, name, within) for name in ("runs", "pulls", "ended")]
    runs, pulls, ended = jobs
    with operator(installed, tmp_path, NAMESPACES=namespace, **SETTINGS) as running:
        runs.start()
        head, _ = runs.add_pod(1, "head", "headgroup")
        labels = {"metadata": {"labels": {"ray.io/node-type": "head"}}}
        api.patch(f"/api/v1/namespaces/{namespace}/pods/{head}", labels)
        ended.start()
        cannot_pull(pulls)
        ended.end(1)
        ended.await_condition("Succeeded", "True")
        for shift in (seconds, -seconds, 0, seconds):
            clock.shift(shift)
            set_container(runs, head, {"running": {}}, ready=False)
            runs.head(1, "False", "ContainersNotReady")
            runs.await_condition("Ready", "False", "HeadNotReady")
            await_passes(running, 6)
            set_container(runs, head, {"running": {}}, ready=True)
            runs.head(1, "True", "HeadPodRunningAndReady")
            runs.await_condition("Ready", "True")
        pulls.await_condition("Ready", "False", "ImagePullBackOff")
        for job in jobs:
            status = job.status()
            assert (status["attempts"], status.get("failures", [])) == (1, [])
            for condition in status["conditions"]:
                at = datetime.fromisoformat(condition["lastTransitionTime"])
                assert abs(at - datetime.now(UTC)) < timedelta(seconds=MINUTES / 2)

        late = JobOnPlane(api, namespace, "late", soon)
        late.start()
        late.await_condition("Failed", "True", "DeadlineExceeded")
        late.await_gone()
        assert "does not lead any more" not in running.log.read_text(encoding="utf-8")
        assert running.page("/healthz").status_code == 200

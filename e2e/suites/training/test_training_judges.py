"""Training with judges in pods of their own, which leave, join and are lost in mid-run; only accelerators are fake."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import events, example, metrics, node_of, pods, with_judge

pytestmark = [
    pytest.mark.bare,
    pytest.mark.timeout(2400),
    pytest.mark.about("verl_omni/trainer", "operator/omni_operator/status", "e2e/training_jobs.py"),
]

NAME = "judged"
CLAIM = "judge"
FOLDER = "/judge"
# a judge starts within half of the steps, also next to other work
STEPS = 200
PROMPTS = 2
EACH = 4
# Generous: on two cores the Ray of three pods takes minutes to start.
FIRST_STEP = 600.0
JOINED = 600.0
NOTICED = 120.0
DONE = 1200.0
MAKE_JUDGE = (
    "import sys; from pathlib import Path; from verl_omni.models.vision_language import make_tiny_qwen3_vl; "
    "make_tiny_qwen3_vl(Path(sys.argv[1]))"
)
# Long, so that a part of whatever the random model answers is in it.
TRUTH = "answer image score final text visible exactly with all of the 1 2 3 4 5 in this a is to"


def job_spec() -> dict[str, Any]:
    """The example with small batches and two judges, of which autoscaling needs one; nothing is evaluated."""
    spec = example(
        "red-grpo-cluster",
        trainer__totalSteps=STEPS,
        checkpoint__everySteps=STEPS,
        trainer__batch={"prompts": PROMPTS},
        trainer__resources={"requests": {"cpu": "100m", "memory": "2Gi"}},
        rollout__samplesPerPrompt=EACH,
    )
    del spec["data"]["validation"], spec["trainer"]["evalEverySteps"]
    judged = with_judge(spec, CLAIM, FOLDER)
    limits = {"minReplicas": 1, "maxReplicas": 2, "requestsPerReplica": PROMPTS * EACH, "stabilizationSeconds": 5}
    judged["reward"]["model"] |= {"replicas": 2, "autoscaling": limits}
    return judged


def fill(folder: Path) -> None:
    """The judge and the prompts."""
    subprocess.run([sys.executable, "-c", MAKE_JUDGE, str(folder / "judge")], check=True, timeout=120)
    for file in (folder / "judge").iterdir():
        file.chmod(0o644)  # pods run as another user
    rows = [{"prompt": f"a {colour} circle", "ground_truth": TRUTH} for colour in ("red", "blue", "green", "grey")]
    (folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")


def said(run: Path, begin: str) -> list[str]:
    """Texts of the events that begin so."""
    texts = [str(event.get("text") or event.get("message") or "") for event in events(run)]
    return [text for text in texts if text.startswith(begin)]


def drained(run: Path) -> list[int]:
    """Ranks of the judges that left when they had answered what they were asked."""
    matches = [
        re.match(r"judge replica (\d+) has answered its questions, and is stopped", text) for text in said(run, "")
    ]
    return [int(match[1]) for match in matches if match]


def one(found: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
    """The pods, if there is one."""
    return found if len(found) == 1 else None


def scale_by(job: Job, requests: int) -> None:
    """Set `requestsPerReplica` of the judge's autoscaling."""
    job.api.patch(job.own_path, {"spec": {"reward": {"model": {"autoscaling": {"requestsPerReplica": requests}}}}})


def test_judges_leave_and_join_by_autoscaling_one_is_lost_and_the_job_succeeds(
    system: System, api: Api, space: str
) -> None:
    run = system.claim(space, "runs") / NAME
    job = Job(api, space, NAME)
    fill(system.claim(space, CLAIM))
    job.create(job_spec())
    job.await_status("a step", lambda status: (status.get("progress", {}).get("globalStep") or 0) >= 1, FIRST_STEP)

    # One judge is enough for all requests of a step: the other one answers those that it has, and leaves.
    deadlines.wait_until("a judge to leave", NOTICED, lambda: drained(run) or None)
    job.await_condition("RewardsScaled", "True", "WithinLimits", within=NOTICED)
    (leaving,) = drained(run)
    (first,) = deadlines.wait_until("one reward pod", NOTICED, lambda: one(pods(api, space, NAME, "reward")))
    assert first["spec"]["nodeName"] == node_of(api, "ascend")
    left_at = metrics(run)[-1]["step"]

    scale_by(job, 1)
    job.await_condition("RewardsScaled", "False", "AtMaximum", within=NOTICED)
    job.await_status("2 reward pods", lambda status: status["reward"]["desired"] == 2, NOTICED)
    deadlines.wait_until("another judge to join", JOINED, lambda: said(run, "judge replica 2 joined") or None)
    job.await_condition("Ready", "True", "TrainerAndRolloutsServing", within=NOTICED)

    # From now on the added one answers alone, until another one has taken the place of the first.
    api.delete(f"/api/v1/namespaces/{space}/pods/{first['metadata']['name']}", gracePeriodSeconds="0")
    # Its hook may have begun to drain the node before the pod was gone.
    deadlines.wait_until("the loss", NOTICED, lambda: said(run, f"judge replica {1 - leaving}") or None)
    lost_at = metrics(run)[-1]["step"]
    job.await_condition("Succeeded", "True", within=DONE)
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    lines = [line for line in metrics(run) if line["step"]]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)) and left_at < lost_at < STEPS
    assert status["progress"]["samples"] == STEPS * PROMPTS * EACH
    assert len({line["reward/mean"] for line in lines[lost_at:]}) > 1, "the judge does not tell images apart"

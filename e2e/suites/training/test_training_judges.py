"""Training with a judge in pods of its own, which are added and lost while the job runs; only accelerators are fake."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from e2e.cluster import deadlines
from e2e.cluster.api import Api
from e2e.jobs import Job
from e2e.system import System
from e2e.training_jobs import events, example, metrics, pods, with_judge

pytestmark = [
    pytest.mark.bare,
    pytest.mark.timeout(2400),
    pytest.mark.about("verl_omni/trainer", "operator/omni_operator/status", "e2e/training_jobs.py"),
]

NAME, CLAIM, FOLDER = "judged", "judge", "/judge"
STEPS, PROMPTS, EACH = 200, 2, 4  # a judge starts within half of the steps, also next to other work
# Generous: on two cores the Ray of three pods takes minutes to start.
FIRST_STEP, JOINED, NOTICED, DONE = 600.0, 600.0, 120.0, 1200.0
MAKE_JUDGE = (
    "import sys; from pathlib import Path; from verl_omni.models.vision_language import make_tiny_qwen3_vl; "
    "make_tiny_qwen3_vl(Path(sys.argv[1]))"
)
# Long, so that a part of whatever the random model answers is in it.
TRUTH = "answer image score final text visible exactly with all of the 1 2 3 4 5 in this a is to"


def job_spec() -> dict[str, Any]:
    """The example with small batches and a judge; nothing is evaluated."""
    spec = example(
        "red-grpo-cluster", trainer__totalSteps=STEPS, checkpoint__everySteps=STEPS,
        trainer__batch={"prompts": PROMPTS}, trainer__resources={"requests": {"cpu": "100m", "memory": "2Gi"}},
        rollout__samplesPerPrompt=EACH,
    )  # fmt: skip
    del spec["data"]["validation"], spec["trainer"]["evalEverySteps"]
    return with_judge(spec, CLAIM, FOLDER)


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


def test_a_judge_gets_another_pod_in_mid_run_loses_the_first_one_and_the_job_succeeds(
    system: System, api: Api, space: str
) -> None:
    run, job = system.claim(space, "runs") / NAME, Job(api, space, NAME)
    fill(system.claim(space, CLAIM))
    job.create(job_spec())
    job.await_status("a step", lambda status: (status.get("progress", {}).get("globalStep") or 0) >= 1, FIRST_STEP)
    (first,) = pods(api, space, NAME, "reward")
    assert first["spec"]["nodeName"] == "ascend"

    api.patch(job.own_path, {"spec": {"reward": {"model": {"replicas": 2}}}})
    deadlines.wait_until("the second judge to join", JOINED, lambda: said(run, "judge replica 1 joined") or None)
    job.await_condition("Ready", "True", "TrainerAndRolloutsServing", within=NOTICED)

    # From now on the added one answers alone, until another one has taken the place of the first.
    api.delete(f"/api/v1/namespaces/{space}/pods/{first['metadata']['name']}", gracePeriodSeconds="0")
    # Its hook may have begun to drain the node before the pod was gone.
    deadlines.wait_until("the loss", NOTICED, lambda: said(run, "judge replica 0") or None)
    lost_at = metrics(run)[-1]["step"]
    job.await_condition("Succeeded", "True", within=DONE)
    status = job.status()
    assert (status["attempts"], status.get("failures", [])) == (1, [])
    lines = [line for line in metrics(run) if line["step"]]
    assert [line["step"] for line in lines] == list(range(1, STEPS + 1)) and lost_at < STEPS
    assert status["progress"]["samples"] == STEPS * PROMPTS * EACH
    assert len({line["reward/mean"] for line in lines[lost_at:]}) > 1, "the judge does not tell images apart"

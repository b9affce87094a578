"""The demo: its progress lines and its volume."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from e2e.demo import EXAMPLE, JOB, ROOT, View, keep, view
from e2e.system import volume
from omni_operator.api import load_job


def condition(kind: str, status: str = "True", message: str = "") -> dict[str, str]:
    return {"type": kind, "status": status, "message": message}


@pytest.mark.parametrize(
    ("status", "shown"),
    [
        ({}, View("the operator has not seen it yet")),
        (
            {
                "attempts": 2,
                "progress": {"globalStep": 7, "totalSteps": 60, "rewardSummary": "0.41"},
                "weights": {"minReplicaVersion": 6},
            },
            View("attempt 2, reward 0.41, weights 6", 7, 60),
        ),
        (
            {
                "conditions": [condition("Succeeded", message="attempt 1")],
                "progress": {"globalStep": 60, "totalSteps": 60, "validationReward": 0.98848},
            },
            View("succeeded, reward of held-out prompts 0.988", 60, 60, over=True),
        ),
        ({"conditions": [condition("Failed", message="no more retries")]}, View("no more retries", over=False)),
    ],
    ids=["new", "running", "succeeded", "failed"],
)
def test_the_status_is_shown_in_one_line(status: dict[str, Any], shown: View) -> None:
    assert view(status) == shown


def test_the_example_is_the_main_job_with_a_device_and_a_claim() -> None:
    on_cluster = load_job(ROOT / EXAMPLE).job
    here = load_job(ROOT / "examples" / "red-grpo.yaml").job
    assert on_cluster.metadata.name == JOB
    device = on_cluster.spec.trainer.accelerator
    assert (device.vendor, device.resource_name) == ("Mock", "nvidia.com/gpu")
    changed = {
        "trainer": on_cluster.spec.trainer.model_copy(update={"accelerator": here.spec.trainer.accelerator}),
        "checkpoint": on_cluster.spec.checkpoint.model_copy(update={"claim_name": None}),
        "backoff_limit": here.spec.backoff_limit,
    }
    assert on_cluster.spec.model_copy(update=changed) == here.spec


def test_results_replace_those_of_an_earlier_demo_and_nothing_else(tmp_path: Path) -> None:
    fetched = tmp_path / "runs" / JOB / "report.html"
    made = tmp_path / "claim" / JOB / "report.html"
    for file in (fetched, made):
        file.parent.mkdir(parents=True)
        file.write_text(str(file))
    for _ in range(2):
        kept = keep(made.parent, tmp_path / "runs")
        assert (kept / "report.html").read_text() == str(made)
        (kept / "old.txt").touch()
    assert fetched.read_text() == str(fetched)
    assert not (keep(made.parent, tmp_path / "runs") / "old.txt").exists()


def test_a_volume_and_its_claim_know_each_other() -> None:
    made, claim = volume("demo", "runs", "demo-runs-1", Path("/kept/demo/runs"))
    assert made["spec"]["claimRef"] == {name: claim["metadata"][name] for name in ("namespace", "name")}
    assert claim["spec"]["volumeName"] == made["metadata"]["name"] == "demo-runs-1"
    assert made["spec"]["hostPath"]["path"] == "/kept/demo/runs"
    assert made["spec"]["storageClassName"] == claim["spec"]["storageClassName"] == ""

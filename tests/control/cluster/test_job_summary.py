"""Summary of a job: its state, its place among waiting passes, and what ends a backoff."""

from typing import Any

import pytest

from omni_operator.cluster.cache.job_summary import STATES, summarize


def job(status: Any = None, **meta: Any) -> dict[str, Any]:
    return {"metadata": {"name": "red", "uid": "u", "generation": 1, **meta}, "status": status}


def true(*kinds: str) -> dict[str, Any]:
    return {"conditions": [{"type": kind, "status": "True"} for kind in kinds]}


@pytest.mark.parametrize(
    ("body", "state", "rank"),
    [
        (job(), "Pending", 0),
        (job({}), "Pending", 0),
        (job({"observedGeneration": -1}), "Pending", 0),
        (job({"attempts": 1}), "Pending", 1),
        (job({"state": "Running"}), "Running", 1),
        (job({**true("Ready"), "state": "Suspended"}), "Suspended", 1),
        (job({**true("Failed"), "state": "Running"}), "Failed", 2),
        (job({"state": ["Running"]}), "Pending", 1),
        (job(true("Succeeded")), "Succeeded", 2),
        (job(true("Failed")), "Failed", 2),
        (job(true("Failed"), deletionTimestamp="2026-01-01T00:00:00Z"), "Failed", 1),
        (job({"conditions": "none"}), "Pending", 1),
        (job({"conditions": [None, {"type": "Failed"}]}), "Pending", 1),
        (job(7), "Pending", 0),
    ],
)
def test_new_jobs_come_first_and_finished_ones_last(body: dict[str, Any], state: str, rank: int) -> None:
    summary = summarize(body)
    assert (summary.state, summary.rank) == (state, rank)
    assert summary.state in STATES


def test_the_revision_changes_with_spec_and_deletion_and_not_with_the_status() -> None:
    first = summarize(job()).revision
    assert summarize(job({"attempts": 1}, resourceVersion="9")).revision == first
    assert summarize(job(generation=2)).revision != first
    assert summarize(job(uid="v")).revision != first
    assert summarize(job(deletionTimestamp="2026-01-01T00:00:00Z")).revision != first

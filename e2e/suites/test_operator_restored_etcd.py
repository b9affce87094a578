"""etcd restored from an older snapshot under a running operator: versions go back, objects vanish and reappear."""

from pathlib import Path

import pytest

from e2e.cluster import deadlines, etcd_snapshot
from e2e.cluster.control_plane import ControlPlane
from e2e.jobs import JOB_SEEN, JobOnPlane
from e2e.operator_process import install, operator

pytestmark = pytest.mark.cluster
RESTORED = "etcd was restored from an older snapshot"


def test_jobs_go_on_from_what_a_restored_etcd_holds(empty: ControlPlane, tmp_path: Path) -> None:
    """One job has a second attempt since the snapshot, one was deleted, and one is newer than the snapshot."""
    install(empty)
    snapshot = tmp_path / "snapshot"
    with empty.api() as api, operator(empty, tmp_path, RETRY_SECONDS="0.1", CANARY_SECONDS="600") as running:
        back, again, lost, new = (
            JobOnPlane(api, "default", name, {"backoffLimit": 1}, patience=2 * JOB_SEEN)
            for name in ("back", "again", "lost", "new")
        )

        def rayjobs() -> set[str]:
            return {body["metadata"]["name"] for body in api.get(back.ray("rayjobs"))["items"]}

        back.start()
        again.start()
        etcd_snapshot.save(empty, snapshot)
        back.head(1, "False", "HeadPodNotFound")
        back.run(2)
        back.await_condition("Ready", "True")
        api.delete(again.own_path)
        again.await_gone()
        lost.start()
        deadlines.wait_until("the first attempts to be gone", JOB_SEEN, lambda: rayjobs() == {"back-a02", "lost-a01"})
        assert RESTORED not in running.log.read_text(encoding="utf-8"), (
            "a control plane that starts again is no restore"
        )

        etcd_snapshot.restore(empty, snapshot)
        deadlines.wait_until(
            "the operator to notice", 2 * JOB_SEEN, lambda: RESTORED in running.log.read_text(encoding="utf-8")
        )
        new.start()
        assert rayjobs() == {"back-a01", "again-a01", "new-a01"}
        assert (back.status()["attempts"], back.status().get("failures", [])) == (1, [])
        again.end(1)
        again.await_condition("Succeeded", "True")
        back.head(1, "False", "HeadPodNotFound")
        back.run(2)
        back.await_condition("Ready", "True")
        deadlines.wait_until(
            "one attempt of each job", JOB_SEEN, lambda: rayjobs() == {"back-a02", "again-a01", "new-a01"}
        )
        back.end(2)
        back.await_condition("Succeeded", "True")
        assert [item["reason"] for item in back.status()["failures"]] == ["HeadLost"]
        assert api.gone(lost.own_path)
        assert running.process.poll() is None
        assert running.page("/healthz").status_code == 200

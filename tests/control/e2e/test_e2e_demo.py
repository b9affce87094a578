"""The demo: its job, and what becomes of earlier results."""

from pathlib import Path

from e2e.demo import EXAMPLE, JOB, ROOT, keep
from omni_operator.api import load_job


def test_the_example_is_the_main_job_with_a_device_and_a_claim() -> None:
    on_cluster = load_job(ROOT / EXAMPLE).job
    main_job = load_job(ROOT / "examples" / "red-grpo.yaml").job
    assert on_cluster.metadata.name == JOB
    device = on_cluster.spec.trainer.accelerator
    assert (device.vendor, device.resource_name) == ("Mock", "nvidia.com/gpu")
    changed = {
        "trainer": on_cluster.spec.trainer.model_copy(update={"accelerator": main_job.spec.trainer.accelerator}),
        "checkpoint": on_cluster.spec.checkpoint.model_copy(update={"claim_name": None}),
        "backoff_limit": main_job.spec.backoff_limit,
    }
    assert on_cluster.spec.model_copy(update=changed) == main_job.spec


def test_results_replace_those_of_an_earlier_demo_and_nothing_else(tmp_path: Path) -> None:
    fetched = tmp_path / "runs" / JOB / "report.html"
    of_claim = tmp_path / "claim" / JOB / "report.html"
    for file in (fetched, of_claim):
        file.parent.mkdir(parents=True)
        file.write_text(str(file))
    for _ in range(2):
        kept = keep(of_claim.parent, tmp_path / "runs")
        assert (kept / "report.html").read_text() == str(of_claim)
        (kept / "old.txt").touch()
    assert fetched.read_text() == str(fetched)
    assert not (keep(of_claim.parent, tmp_path / "runs") / "old.txt").exists()

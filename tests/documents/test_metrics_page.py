"""docs/reference/metrics.md lists the metrics of both packages."""

from tools import metrics_page
from verl_omni.utils.metrics.exported_metrics import PREFIX, ROLLOUT, TRAINER


def test_every_metric_has_its_type_its_labels_and_a_text() -> None:
    rows = {row.name: row for row in metrics_page.rows()}
    assert {PREFIX + metric.name for metric in (*TRAINER, *ROLLOUT)} <= set(rows)
    assert len(rows) > 35
    assert all(row.kind in ("gauge", "counter", "histogram") and row.text for row in rows.values())
    assert rows["diffusionrl_job_condition"].labels == ("name", "namespace", "status", "type")
    assert rows["diffusionrl_operator_reconcile_seconds"].labels == ("result",)
    single = {name for name, row in rows.items() if not row.labels and name.startswith("diffusionrl_")}
    assert single == {
        "diffusionrl_jobs_not_shown",
        "diffusionrl_operator_leader",
        "diffusionrl_operator_queue_depth",
        "diffusionrl_operator_tasks",
        "diffusionrl_operator_watch_late_writes",
    }, "each other metric has a sample on the page, with its labels"


def test_a_query_with_an_unknown_metric_is_found() -> None:
    known = 'sum by (diffusionrl_job) (rate(diffusionrl_operator_reconcile_seconds_bucket{le="1"}[5m])) / ray_omni_step'
    assert metrics_page.unknown_names(known) == set()
    assert metrics_page.unknown_names("ray_omni_stp > diffusionrl_operator_reconcile_seconds") == {
        "ray_omni_stp",
        "diffusionrl_operator_reconcile_seconds",
    }

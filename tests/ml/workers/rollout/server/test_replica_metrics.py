"""The exported metrics of a replica count the time in which it has no request."""

import pytest

from tests.ml.trainer.recorded_runs import Recorder
from verl_omni.workers.rollout.vllm_rollout.server import replica_metrics
from verl_omni.workers.rollout.vllm_rollout.server.replica_metrics import ReplicaMetrics


def test_idle_seconds_are_those_between_requests_from_the_first_weights_on(monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = Recorder()
    now = [10.0]
    monkeypatch.setattr(replica_metrics, "MetricsWriter", lambda labels: recorder)
    monkeypatch.setattr(replica_metrics.time, "monotonic", lambda: now[0])
    metrics = ReplicaMetrics(0)
    metrics.serves(0)
    now[0] = 13.0
    with metrics.in_flight():
        now[0] = 20.0
        with metrics.in_flight():
            now[0] = 21.0
        assert recorder.values["omni_rollout_requests_in_flight"] == 1
    assert recorder.values["omni_rollout_idle_seconds_total"] == 3.0
    metrics.serves(1)
    now[0] = 25.0
    with metrics.in_flight():
        assert recorder.values["omni_rollout_idle_seconds_total"] == 3.0 + 4.0

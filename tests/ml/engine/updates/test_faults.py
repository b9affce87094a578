"""Faults in rewards and replicas while two replicas serve: each ends with the expected error, hangs
nothing and leaves nothing, and the rest continues. The tests run in this order: the last ones kill the replicas.
"""

import os
import signal
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch

from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import (
    DEADLINE,
    PROMPTS,
    SOON,
    TwoReplicas,
    ending_at_the_sixth,
)
from verl_omni.weight_sync import ipc

pytestmark = [pytest.mark.engine, pytest.mark.timeout(900)]


# --- silence: before anything is killed ---------------------------------------------------------------------


def test_a_silent_replica_is_named_and_serves_when_it_is_back(two_replicas: TwoReplicas) -> None:
    """A stopped process keeps its connections open and never answers: Ray alone would wait forever."""
    from verl_omni.workers.rollout.replica_calls import ReplicaCallFailed  # imports Ray: only after Ray was started

    serving, silent = two_replicas.replicas
    picture = silent.picture()
    counted = Leftovers()
    assert torch.equal(serving.picture(), picture)
    asked = [silent.draw(seed) for seed in range(3)]
    pid = silent.pid()
    os.kill(pid, signal.SIGSTOP)
    try:
        with ThreadPoolExecutor(1) as pool:
            versions = pool.submit(two_replicas.stack.versions)  # both wait for their deadline
            with pytest.raises(Exception, match="SampleFailed") as drawing:
                two_replicas.score(["", "", "", ""], version=1)
            with pytest.raises(ReplicaCallFailed, match=r"replica 1 did not report its weight version within 10 s"):
                versions.result()
        with pytest.raises(Exception, match=r"version 5 did not reach replica [01]: "):
            two_replicas.stack.weights.update_weights(global_steps=5)
        with pytest.raises(ReplicaCallFailed, match=r"replica 1, sleep: no reply within 10 s"):
            two_replicas.stack.weights.sleep_replicas()
    finally:
        os.kill(pid, signal.SIGCONT)
    message = str(drawing.value)
    address = two_replicas.stack.servers.server_addresses[1]
    assert f"replica {address}: no reply for 10 s (rollout.deadline_seconds)" in message
    assert "at weight version 1" in message and any(prompt in message for prompt in PROMPTS)
    two_replicas.stack.weights.wake_up_replicas()
    assert [sample.stop_reason for sample in ray_get(asked)] == ["completed"] * 3
    assert torch.equal(silent.picture(), picture)
    serving.publish(serving.adapter(1.0), version=1)  # it may or may not have received version 5
    assert torch.equal(serving.picture(), picture)
    assert two_replicas.stack.versions() == [1, 1]
    counted.none()


def ray_get(asked: Any) -> Any:
    import ray

    return ray.get(asked, timeout=SOON)


# --- rewards ------------------------------------------------------------------------------------------------


def test_a_slow_scorer_is_awaited_and_a_raising_one_is_named(two_replicas: TwoReplicas) -> None:
    scored = two_replicas.score(["", "slow", "", ""])
    assert scored.scoring_seconds > 2
    assert scored.scores.tolist() == pytest.approx([float(image.float().mean() / 255) for image in scored.images])
    one_raises = two_replicas.score(["", "", "raise", ""]).scores
    assert one_raises.isnan().tolist() == [False, False, True, False], "reward.max_failed_share allows one of four"
    with pytest.raises(Exception, match="the scorer's disk is gone") as caught:
        two_replicas.score(["", "raise", "raise", ""])
    assert any(prompt in str(caught.value) for prompt in PROMPTS[1:3])
    assert two_replicas.score(["", "", "", ""]).scores.tolist() == scored.scores.tolist()


def test_a_dead_reward_worker_is_started_again_and_scores_its_samples_again(two_replicas: TwoReplicas) -> None:
    import ray

    (worker, *_) = ray.get(
        two_replicas.stack.agent_loop.agent_loop_workers[0].__ray_call__.remote(
            lambda own: own.reward_loop_worker_handles
        )
    )
    pid = ray.get(worker.__ray_call__.remote(lambda own: os.getpid()))
    with ThreadPoolExecutor(1) as pool:
        batch = pool.submit(two_replicas.score, ["slow", "slow", "slow", "slow"])
        time.sleep(1)  # being scored: no score may be lost whenever the worker dies
        os.kill(pid, signal.SIGKILL)
        scored = batch.result(timeout=SOON)
    assert scored.scores.tolist() == pytest.approx([float(image.float().mean() / 255) for image in scored.images])
    assert ray.get(worker.__ray_call__.remote(lambda own: os.getpid())) != pid


# --- replicas -----------------------------------------------------------------------------------------------


def test_a_replica_that_dies_while_generating_fails_the_batch_and_is_named(two_replicas: TwoReplicas) -> None:
    import ray

    serving, dying = two_replicas.replicas
    pid = dying.pid()
    counted = Leftovers()
    asked = dying.make_busy()
    os.kill(pid, signal.SIGKILL)
    ended = []
    for answer in asked:
        try:
            ray.get(answer, timeout=SOON)
        except ray.exceptions.RayActorError as error:
            ended.append(str(error))
    assert ended
    assert torch.equal(serving.picture(), serving.picture())
    address = two_replicas.stack.servers.server_addresses[1]
    with pytest.raises(Exception, match="SampleLost") as batch:  # no other replica takes its share of a batch
        two_replicas.score(["", "", "", ""], version=1)
    assert f"replica {address}: Actor" in str(batch.value)
    counted.none()


def test_a_replica_that_dies_in_an_update_fails_the_update(two_replicas: TwoReplicas) -> None:
    import ray

    first = two_replicas.replicas[0]
    pid = first.pid()
    counted = Leftovers()
    weights = ending_at_the_sixth(first.adapter(2.0), lambda: os.kill(pid, signal.SIGKILL))
    handle, answer = first.begin()
    with pytest.raises(Exception, match="PeerDisconnected"):
        ipc.send(weights, handle=handle, bucket_bytes=600, device=None, deadline=DEADLINE)
    with pytest.raises(ray.exceptions.RayActorError):
        ray.get(answer, timeout=SOON)
    with pytest.raises(Exception, match=r"died|dead|unavailable"):  # the last, if Ray has not noticed its death yet
        two_replicas.stack.weights.update_weights(global_steps=3)
    counted.none()

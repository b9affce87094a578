"""Engines whose workers are processes of their own, as on a machine with accelerators: updates, and dead workers.

On a host that needs `step_execution`. The tests run in this order: they end one engine, then the other, then the run.
"""

from collections.abc import Callable, Iterator
from typing import Any

import psutil
import pytest
import torch

from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import DEADLINE, SOON, Replica, ending_at_the_sixth, replicas_of, wait_for
from verl_omni.weight_sync import ipc
from verl_omni.weight_sync.errors import WeightSyncError

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]


@pytest.fixture(scope="module")
def counted() -> Iterator[Leftovers]:
    """Resources before the start; none may be left at the end."""
    before = Leftovers()
    yield before
    before.none()


@pytest.fixture(scope="module")
def stack(counted: Leftovers, start_tiny: Any) -> Any:
    rollout = "actor_rollout_ref.rollout"
    _, stack = start_tiny(
        ["a red circle"],
        "trainer.n_gpus_per_node=2",
        f"{rollout}.engine_kwargs.vllm_omni.distributed_executor_backend=mp",
        f"{rollout}.step_execution=true",
        f"{rollout}.max_num_seqs=1",
        f"{rollout}.checkpoint_engine.engine_kwargs.naive.deadline_seconds={DEADLINE}",
        f"{rollout}.deadline_seconds={SOON}",
    )
    return stack


@pytest.fixture(scope="module")
def replicas(stack: Any) -> list[Replica]:
    return replicas_of(stack)


def worker_of(replica: Replica) -> psutil.Process:
    """The process of the engine's worker."""
    below = psutil.Process(replica.pid()).children(recursive=True)
    (worker,) = [process for process in below if "DiffusionWorker" in " ".join(process.cmdline())]
    return worker


def ask(replica: Replica, question: Callable[[Any], Any]) -> Any:
    """The answer of a function to the server; a function inside another one, because the server has no tests."""
    import ray

    return ray.get(replica.server.__ray_call__.remote(question), timeout=SOON)


def notice_late(replica: Replica) -> None:
    """Let the engine not end because a worker has died, until `noticed` is set: requests fail before, each by itself.

    Otherwise chance decides which comes first.
    """

    def insert(server: Any) -> None:
        import threading

        (client,) = server.engine.engine.stage_pools[0].clients
        server.noticed = threading.Event()
        client._engine.executor._failure_callbacks.insert(0, server.noticed.wait)

    ask(replica, insert)


def scheduled(replica: Replica) -> tuple[int, int]:
    """Numbers of the requests that the engine has given to its worker, and of those that it has not."""

    def count(server: Any) -> tuple[int, int]:
        (client,) = server.engine.engine.stage_pools[0].clients
        scheduler = client._engine.scheduler
        return scheduler.num_running_requests(), scheduler.num_waiting_requests()

    counts: tuple[int, int] = ask(replica, count)
    return counts


def error_of(asked: Any) -> str:
    """The error that a call of a server ends with."""
    import ray

    with pytest.raises(ray.exceptions.RayTaskError) as caught:
        ray.get(asked, timeout=SOON)
    return str(caught.value)


def test_an_adapter_reaches_a_worker_in_another_process(replicas: list[Replica]) -> None:
    first, second = replicas
    assert len({replica.pid() for replica in replicas} | {worker_of(replica).pid for replica in replicas}) == 4
    before = first.picture()
    counted = Leftovers()
    assert torch.equal(before, second.picture())
    first.publish(first.adapter(2.0), version=2)
    assert not torch.equal(before, first.picture())
    first.publish(first.adapter(1.0), version=1)
    assert torch.equal(before, first.picture())
    counted.none()


def test_a_worker_that_dies_while_generating_fails_its_requests_and_all_later_ones(replicas: list[Replica]) -> None:
    import ray

    from verl_omni.workers.rollout.replica_calls import EngineDead

    serving, dying = replicas
    worker = worker_of(dying)
    picture = serving.picture()
    assert torch.equal(dying.picture(), picture)  # its first request also asks the worker for its adapters
    ray.get([replica.server.check_engine.remote() for replica in replicas], timeout=SOON)
    notice_late(dying)
    worker.suspend()  # it ends no request before it dies
    asked = [dying.draw(seed) for seed in range(3)]
    wait_for(lambda: scheduled(dying) == (1, 2))
    worker.kill()
    for call in asked:
        # Another standalone replica does the work of a request that ends with this error.
        with pytest.raises(EngineDead, match="rollout replica 1, with weights of version 1: "):
            ray.get(call, timeout=SOON)
    ask(dying, lambda server: server.noticed.set())
    for call in (dying.draw(0), dying.server.check_engine.remote()):
        with pytest.raises(EngineDead):
            ray.get(call, timeout=SOON)
    assert "OmniEngineDeadError" in error_of(dying.draw(0))
    with pytest.raises(psutil.NoSuchProcess):
        worker.status()
    assert torch.equal(serving.picture(), picture), "the other replica serves on"


def test_a_worker_that_dies_in_an_update_fails_both_ends(replicas: list[Replica]) -> None:
    first = replicas[0]
    weights = ending_at_the_sixth(first.adapter(2.0), worker_of(first).kill)
    handle, answer = first.begin()
    with pytest.raises(WeightSyncError, match="PeerDisconnected"):
        ipc.send(weights, handle=handle, bucket_bytes=600, device=None, deadline=DEADLINE)
    assert "update_weights_from_ipc failed in 1 of 1 workers" in error_of(answer)
    assert "OmniEngineDeadError" in error_of(first.draw(0))

"""An engine whose worker is a process of its own, as with an accelerator: when it dies, its server says so."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from typing import Any

import psutil
import pytest

from verl_omni.weight_sync import transfer

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SOON = 60.0  # seconds by which whatever is asked has ended


@pytest.fixture(scope="module")
def replicas(start: Any, replicas_of: Any, tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    from verl_omni.models.tiny import make_tiny_sd3

    model = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_sd3(model)
    _, stack = start(
        ["a red circle"],
        "data.max_prompt_length=16", "trainer.n_gpus_per_node=2", "actor_rollout_ref.rollout.n=2",
        f"actor_rollout_ref.model.path='{model}'", "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.rollout.engine_kwargs.vllm_omni.distributed_executor_backend=mp",
        # Whole requests need a stream of the device to hand pictures over, which a host has not.
        "actor_rollout_ref.rollout.step_execution=true", "actor_rollout_ref.rollout.max_num_seqs=1",
    )  # fmt: skip
    found: list[Any] = replicas_of(stack)
    return found


def worker_of(replica: Any) -> psutil.Process:
    (found,) = [each for each in psutil.Process(replica.pid()).children() if "spawn_main" in " ".join(each.cmdline())]
    return found


def said(answer: Any) -> str:
    import ray

    with pytest.raises(Exception) as caught:  # noqa: PT011  what it says is looked at by the caller
        ray.get(answer, timeout=SOON)
    assert not isinstance(caught.value, ray.exceptions.GetTimeoutError), "it hung"
    return str(caught.value)


def nothing_new(replica: Any, counted: Any) -> None:
    assert "rollout replica" in said(replica.draw(1))
    _, answer = replica.begin()
    assert "update_weights_from_ipc failed" in said(answer)
    counted.none()


def test_a_worker_that_dies_while_it_draws_ends_what_was_asked(
    replicas: list[Any], leftovers: Callable[[], Any]
) -> None:
    replica, counted = replicas[0], leftovers()
    asked = [replica.draw(seed) for seed in range(20)]
    while replica.in_flight() == 0:
        pass
    os.kill(worker_of(replica).pid, signal.SIGKILL)
    for answer in asked[-5:]:
        assert f"rollout replica {replica.rank}, with weights of version 1" in said(answer)
    nothing_new(replica, counted)


def test_a_worker_that_dies_in_an_update_ends_it(replicas: list[Any], leftovers: Callable[[], Any]) -> None:
    replica, counted = replicas[1], leftovers()
    worker, (handle, answer) = worker_of(replica), replica.begin()

    def weights() -> Any:
        for number, (name, tensor) in enumerate(replica.adapter(2.0).items()):
            if number == 5:
                os.kill(worker.pid, signal.SIGKILL)
            yield name, tensor

    with pytest.raises(Exception, match="DeadlineExceeded"):
        transfer.send(weights(), handle=handle, bucket_bytes=600, device=None, deadline=5.0)
    assert "update_weights_from_ipc failed" in said(answer)
    nothing_new(replica, counted)

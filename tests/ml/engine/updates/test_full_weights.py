"""Full weights to two replicas of the real engine, from a policy that is sharded over two processes."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.engine.replica_driver import Replica, announced
from tests.ml.engine.small_run import small_run
from verl_omni.weight_sync import ipc, names
from verl_omni.weight_sync.buffers import SEGMENT_PREFIX

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"
PROMPTS = ["a red circle", "two blue squares", "a green cross", "a cyan triangle"]
BUCKET_MB = 1  # the model has 2.4 MB


@pytest.fixture(scope="module")
def running(start: Any) -> tuple[Any, Any]:
    config, stack = start(
        PROMPTS,
        *small_run(MODEL),
        "actor_rollout_ref.model.lora_rank=0",
        "trainer.n_gpus_per_node=2",
        "actor_rollout_ref.actor.optim.lr=1e-3",
        "data.max_prompt_length=12",
        "actor_rollout_ref.rollout.pipeline.max_sequence_length=12",
        f"actor_rollout_ref.rollout.checkpoint_engine.update_weights_bucket_megabytes={BUCKET_MB}",
    )
    stack.weights.update_weights(global_steps=0)
    return config, stack


def assert_no_segment_remains() -> None:
    """Engines that are tested at the same time have segments for moments; what is left behind stays."""
    segments = set(Path("/dev/shm").glob(f"{SEGMENT_PREFIX}*"))
    until = time.monotonic() + 30
    while segments and time.monotonic() < until:
        time.sleep(0.2)
        segments = {path for path in segments if path.exists()}
    assert segments == set()


def ask(server: Any, seed: int) -> Any:
    """One sample from one replica."""
    import ray

    asked = Replica.request(seed)
    asked["sampling_params"]["max_sequence_length"] = 12
    return ray.get(server.generate.remote(**asked, request_id=f"ask-{seed}"), timeout=120)


def from_both(running: tuple[Any, Any]) -> tuple[torch.Tensor, list[int]]:
    """The image that both replicas generate for the same request, and its versions."""
    servers = running[1].servers.server_handles
    assert len(servers) == 2
    first, second = (ask(server, seed=5) for server in servers)
    assert torch.equal(first.diffusion_output, second.diffusion_output), "the replicas have different weights"
    return first.diffusion_output, [output.extra_fields["global_steps"] for output in (first, second)]


def publish(running: tuple[Any, Any], version: int) -> list[dict[str, Any]]:
    import ray

    return ray.get(running[1].workers.update_weights(global_steps=version), timeout=120)  # type: ignore[no-any-return]


def train(running: tuple[Any, Any], rows: Any) -> dict[str, Any]:
    from verl import DataProto

    from verl_omni.trainer.generation import sample_generation
    from verl_omni.trainer.metrics import step_metrics

    config, stack = running
    prompts = sample_generation.training_requests(rows(PROMPTS)[:2], n=2, step=1, version=0, seed=3)
    samples = sample_generation.generate_scored(config, stack.agent_loop, prompts)
    assert len(set(samples.versions)) == 1
    batch = {**samples.tensors, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0])}
    sampler = {"noise_level": 0.7, "sde_type": "sde", "guidance_scale": 1.0, "tolerance": 1e-4}
    proto = DataProto.from_dict(tensors=batch, meta_info={"request": sampler})
    return step_metrics.over_ranks(stack.workers.update_actor(proto).meta_info["metrics"])


def test_an_update_in_several_buckets_reaches_both_and_a_restored_policy_restores_the_images(
    running: tuple[Any, Any], rows: Any, tmp_path: Path
) -> None:
    stack = running[1]
    before, versions = from_both(running)
    assert versions == [0, 0]
    stack.workers.save_checkpoint(str(tmp_path))
    metrics = train(running, rows)
    assert metrics["actor/grad_norm"] > 0
    assert metrics["rollout_corr/mean_abs_diff"] < 1e-5
    answers = publish(running, 1)
    assert [answer["buckets"] for answer in answers] == [5, 5]
    assert not any(answer["lora"] for answer in answers)
    assert [answer["casts"] for answer in answers] == [{}, {}], "both ends have the same dtypes"
    changed, versions = from_both(running)
    assert versions == stack.versions() == [1, 1]
    assert not torch.equal(before, changed)
    stack.workers.load_checkpoint(str(tmp_path))
    publish(running, 2)
    restored, versions = from_both(running)
    assert versions == [2, 2]
    assert torch.equal(before, restored)
    assert_no_segment_remains()


@pytest.mark.parametrize("fault", ["sender fails", "unknown name"])
def test_a_replica_with_half_an_update_refuses_requests_until_a_complete_one(
    running: tuple[Any, Any], fault: str
) -> None:
    import ray
    from safetensors.torch import load_file

    servers = running[1].servers.server_handles
    before, _ = from_both(running)
    weights = load_file(MODEL / "transformer" / "diffusion_pytorch_model.safetensors")
    del weights["pos_embed.pos_embed"]  # a constant: no update carries it

    def broken() -> Iterator[tuple[str, torch.Tensor]]:
        for number, (name, tensor) in enumerate(weights.items()):
            if number == 40:
                if fault == "sender fails":
                    raise OSError("the trainer's disk is gone")
                yield "transformer.no_such_weight", tensor
            yield f"transformer.{name}", tensor * 1.5

    job = ray.get_runtime_context().get_job_id()
    update = names.make_update_zmq_id(9, len(fault))
    handle, told = announced(update, 30.0, job=job)
    receiving = servers[0].collective_rpc.remote("update_weights_from_ipc", kwargs=told)
    with pytest.raises(Exception, match="disk is gone" if fault == "sender fails" else "no_such_weight"):
        ipc.send(broken(), handle=handle, bucket_bytes=1 << 16, device=None, deadline=30.0)
    with pytest.raises(Exception, match="disk is gone" if fault == "sender fails" else "no_such_weight"):
        ray.get(receiving, timeout=60)
    with pytest.raises(Exception, match="PartialWeights"):
        ask(servers[0], seed=5)
    assert torch.equal(ask(servers[1], seed=5).diffusion_output, before), "the other replica is not affected"
    publish(running, 3)
    mended, _ = from_both(running)
    assert torch.equal(mended, before)
    assert_no_segment_remains()

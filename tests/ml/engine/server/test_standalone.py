"""A standalone replica that a program starts itself, with the model's path and defaults: it serves pictures.

Last, the start of a replica that the end of a run finds waiting.
"""

import asyncio
import base64
import io
import logging
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import torch
from PIL import Image

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

SIZE = 64


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    path = tmp_path_factory.mktemp("tiny") / "model"
    make_tiny_sd3(path)
    return path


@pytest.fixture(scope="module")
def cluster() -> Iterator[Any]:
    """Ray with one logical accelerator, whose workers are forks of a process that has imported the engine."""
    from verl_omni.platforms.cpu.fork_server import ForkingCluster
    from verl_omni.trainer import startup

    startup.prepare_environment(has_accelerator=False)
    ray_cluster = ForkingCluster([], num_cpus=8, num_gpus=1, include_dashboard=False, _node_ip_address="127.0.0.1")
    yield ray_cluster
    ray_cluster.stop()


@pytest.fixture(scope="module")
def replica(cluster: Any, model: Path) -> Iterator[Any]:
    import ray

    from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

    rollout_replica = vLLMOmniReplica(0, DiffusionRolloutConfig(), DiffusionModelConfig(path=str(model)))
    asyncio.run(rollout_replica.init_standalone())
    yield rollout_replica
    ray.get([server.shutdown.remote() for server in rollout_replica.servers], timeout=60)


def test_a_replica_with_defaults_generates_and_serves_http(replica: Any, model: Path) -> None:
    import ray
    from transformers import AutoTokenizer

    ids = AutoTokenizer.from_pretrained(model / "tokenizer")("a red circle").input_ids
    params = {"height": SIZE, "width": SIZE, "num_inference_steps": 4, "seed": 7}
    first, again = ray.get(
        [
            replica.server_handle.generate.remote(prompt_ids=ids, sampling_params=params, request_id=name)
            for name in ("first", "again")
        ],
        timeout=120,
    )
    assert first.diffusion_output.shape == (3, SIZE, SIZE) and first.diffusion_output.dtype == torch.uint8
    assert first.stop_reason == "completed" and first.diffusion_output.float().std() > 0
    assert (first.diffusion_output.int() - again.diffusion_output.int()).abs().max() <= 1
    answer = httpx2.post(
        f"http://{replica.server_address}/v1/images/generations",
        json={"prompt": "a red circle", "size": f"{SIZE}x{SIZE}", "seed": 7},
        timeout=120,
    )
    assert answer.status_code == 200, answer.text
    picture = Image.open(io.BytesIO(base64.b64decode(answer.json()["data"][0]["b64_json"])))
    assert picture.size == (SIZE, SIZE)


def test_a_server_alone_serves_with_defaults(cluster: Any, replica: Any, model: Path) -> None:
    """The class itself as an actor of the user's, without a replica."""
    import ray
    from verl.workers.rollout.replica import RolloutMode

    from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    server = (
        ray.remote(vLLMOmniHttpServer)
        .options(max_concurrency=100)
        .remote(
            config=DiffusionRolloutConfig(),
            model_config=DiffusionModelConfig(path=str(model)),
            rollout_mode=RolloutMode.STANDALONE,
            workers=[],
            replica_rank=1,
            node_rank=0,
            gpus_per_node=1,
            nnodes=1,
            cuda_visible_devices="",
        )
    )
    ray.get(server.launch_server.remote(), timeout=300)
    params = {"height": SIZE, "width": SIZE, "num_inference_steps": 4, "seed": 7}
    output = ray.get(server.generate.remote(prompt_ids=[1, 2], sampling_params=params, request_id="one"), timeout=120)
    assert output.diffusion_output.shape == (3, SIZE, SIZE) and output.stop_reason == "completed"
    ray.get(server.shutdown.remote(), timeout=60)


def test_a_pod_that_stops_has_the_run_save_what_is_complete(cluster: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The hook of a pod and the training program, by a real Ray."""
    import ray

    from verl_omni.trainer.run.save_requests import SaveRequests
    from verl_omni.utils import save_before_stop

    monkeypatch.setattr(save_before_stop, "GCS_PORT", int(ray.get_runtime_context().gcs_address.rpartition(":")[2]))
    store = save_before_stop.Store(ray._raylet.GcsClient(address=save_before_stop.head_address()))
    run = SaveRequests()
    saved = []
    run.observe({"event": "start", "resumed_from": None})
    run.observe({"event": "step", "step": 1})
    hook = threading.Thread(target=lambda: saved.append(save_before_stop.save(store, 60.0)))
    hook.start()
    while not run.requested():
        time.sleep(0.01)
    assert store.progress() == save_before_stop.Progress(1, 0, ray.get_runtime_context().get_job_id())
    run.observe({"event": "step", "step": 2})
    run.observe({"event": "checkpoint", "step": 2})
    hook.join(60.0)
    assert saved == [True] and not run.requested()
    ends = iter([False, True])
    messages = []
    run.wait_for_end(lambda: next(ends), messages.append)
    assert len(messages) == 1 and not any(ends), "a run that saved for a hook takes no step more"
    SaveRequests().wait_for_end(pytest.fail, pytest.fail)
    monkeypatch.setattr(store, "request", pytest.fail)
    assert save_before_stop.save(store, 60.0), "a second hook asks for no other one"
    assert store.runs(ray.get_runtime_context().get_job_id()) and not store.runs("7f000000")


def test_a_server_alone_names_the_settings_that_it_changes_on_a_cpu(caplog: pytest.LogCaptureFixture) -> None:
    from verl_omni.workers.config import DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniHttpServer

    config = DiffusionRolloutConfig(tensor_model_parallel_size=4)
    with caplog.at_level(logging.WARNING):
        fitted = vLLMOmniHttpServer._init_config(object(), config)  # type: ignore[arg-type]
    warnings = [record.getMessage() for record in caplog.records]
    assert "rollout.tensor_model_parallel_size is 1 on a CPU, not 4" in warnings and len(warnings) == 4
    caplog.clear()
    vLLMOmniHttpServer._init_config(object(), fitted)  # type: ignore[arg-type]
    assert caplog.records == []


def test_the_log_says_why_a_replica_waits_for_accelerators(
    cluster: Any, model: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    import ray

    from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server import vLLMOmniReplica

    # A cluster that the user started without `num_gpus`. On a CPU, a replica never needs more than one.
    monkeypatch.setattr(ray, "nodes", lambda: [{"Alive": True, "Resources": {"CPU": 8.0}}])
    waiting = vLLMOmniReplica(2, DiffusionRolloutConfig(data_parallel_size=2), DiffusionModelConfig(path=str(model)))
    for name in ("place", "launch_servers"):  # the wait itself has no end
        monkeypatch.setattr(waiting, name, _nothing if name == "launch_servers" else lambda: None)
    with caplog.at_level(logging.WARNING):
        asyncio.run(waiting.init_standalone())
    (message,) = [text for record in caplog.records if "waits for" in (text := record.getMessage())]
    assert message.startswith("replica 2 waits for accelerators: it needs 1 GPU on one node")
    assert message.endswith("no node of this Ray cluster has more than 0: on a CPU, write ray.init(num_gpus=...)")


async def _nothing() -> None:
    pass


@pytest.mark.usefixtures("cluster")
def test_a_start_that_waits_for_a_node_ends_when_it_is_given_up() -> None:
    from ray.util.placement_group import placement_group_table
    from verl.workers.config import HFModelConfig, RolloutConfig

    from verl_omni.trainer.replicas.replica_launcher import RayLauncher
    from verl_omni.workers.rollout.vllm_rollout.judge.replica import JudgeReplica

    def make(rank: int) -> JudgeReplica:  # no node has its resource
        model = HFModelConfig.__new__(HFModelConfig)  # it is read when the servers start
        config = RolloutConfig(name="vllm", tensor_model_parallel_size=1)
        return JudgeReplica(rank, config, model, 1, node_resource="omni_judge", ray_resource=None, deadline=60)

    launcher = RayLauncher(make, places=len, requests=lambda _: [], deadline=60)
    errors: list[BaseException] = []

    def start() -> None:
        try:
            launcher.start(3)
        except BaseException as error:
            errors.append(error)

    def group() -> Any:
        groups = [entry for entry in placement_group_table().values() if entry["name"] == "judge_3:0"]
        return groups[0] if groups else None

    thread = threading.Thread(target=start, daemon=True)
    thread.start()
    while group() is None:
        time.sleep(0.1)
    assert group()["state"] == "PENDING" and thread.is_alive()
    assert group()["strategy"] == "STRICT_PACK", "a replica that needs two accelerators waits for both on one node"
    launcher.give_up()
    thread.join(30)
    assert not thread.is_alive() and len(errors) == 1
    assert group()["state"] == "REMOVED", "the accelerators are free for others"

"""The rollout and the weight updates on the real engine, a real Ray, and a tiny model."""

import asyncio
import copy
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch

from e2e import dashboards, prometheus
from e2e.cluster.errors import ToolMissing
from e2e.conftest import leave_out
from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import RANK
from verl_omni.utils.metrics.image_statistics import measure

pytestmark = pytest.mark.engine

PROMPTS = ["a red circle", "a blue square on the left", "two cat photo"]


@dataclass(frozen=True)
class Running:
    """A stack with a tiny model, and rows of a dataset."""

    config: Any
    stack: Any
    rows: list[dict[str, Any]]


class Held(NamedTuple):
    """What a process holds."""

    objects: int
    """Those that the garbage collector tracks."""
    references: int
    """Objects of Ray's store that it keeps."""
    resident: int
    """Bytes of memory."""


@pytest.fixture(scope="module")
def running(start_tiny: Any, rows: Any) -> Running:
    settings, stack = start_tiny(
        PROMPTS,
        # The batch size affects rounding, and depends on the time at which requests
        # arrive: with a batch size of one, images are bit-identical (batches: test_full_weights.py).
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "trainer.fork_workers=false",  # a Ray as in a cluster, which exports metrics
    )
    stack.weights.update_weights(global_steps=0)
    return Running(settings, stack, rows(PROMPTS))


@pytest.fixture(scope="module")
def programs() -> prometheus.Programs:
    try:
        return prometheus.ensure()
    except ToolMissing as error:
        leave_out(error)
        raise


def evaluate(running: Running) -> Any:
    from verl_omni.trainer.generation import sample_generation

    return sample_generation.generate_scored(
        running.config, running.stack.agent_loop, sample_generation.evaluation_requests(running.rows, seed=7)
    )


def train_batch(running: Running, step: int, version: int) -> Any:
    from verl_omni.trainer.generation import sample_generation

    prompts = sample_generation.training_requests(running.rows[:2], n=2, step=step, version=version, seed=3)
    return sample_generation.generate_scored(running.config, running.stack.agent_loop, prompts)


def test_samples_depend_on_their_seed_and_carry_their_version(running: Running) -> None:
    scored = evaluate(running)
    again = evaluate(running)
    assert scored.images.dtype == torch.uint8 and scored.images.shape == (3, 3, 64, 64)
    assert torch.equal(scored.images, again.images)
    assert scored.versions == [0, 0, 0]
    assert scored.scores.tolist() == pytest.approx([float(i.float().mean() / 255) for i in scored.images])
    assert [stats.numbers() for stats in scored.statistics] == [measure(image).numbers() for image in scored.images]
    samples = train_batch(running, step=1, version=0)
    assert samples.tensors["all_latents"].shape == (4, 4, 16, 8, 8)
    assert samples.tensors["rollout_log_probs"].shape == (4, 3)
    assert samples.tensors["velocity_projections"].shape == (4, 3, 33)
    assert not torch.equal(samples.images[0], samples.images[1]), "samples of a prompt must differ"
    assert torch.equal(samples.images, train_batch(running, step=1, version=0).images)
    assert not torch.equal(samples.images, train_batch(running, step=2, version=0).images)


def test_a_chat_template_leaves_case_and_spacing_to_encoders_that_keep_them(running: Running, rows: Any) -> None:
    """The ids of the first tokenizer, CLIP's, lose both; T5 reads the rendered text."""
    from verl_omni.agent_loop import DiffusionAgentLoopWorker
    from verl_omni.trainer.generation import sample_generation, verl_batches
    from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

    user = "{% for message in messages %}{% if message.role == 'user' %}{{ message.content }}{% endif %}{% endfor %}"

    def drawn(prompt: str, template: str | None) -> torch.Tensor:
        config = copy.deepcopy(running.config)
        config.actor_rollout_ref.model.custom_chat_template = template
        client = running.stack.servers.get_client(client_cls=DiffusionLLMServerClient)
        worker = DiffusionAgentLoopWorker(config, client)
        responses = asyncio.run(
            worker.generate_sequences(
                verl_batches.requests_to_verl(sample_generation.evaluation_requests(rows([prompt]), seed=7))
            )
        ).batch["responses"]
        assert isinstance(responses, torch.Tensor)
        return responses

    plain = drawn("A Red  Circle", None)
    assert torch.equal(plain, drawn("A Red  Circle", user))
    assert not torch.equal(plain, drawn("a red circle", user))


def test_stored_samples_hold_what_samples_in_the_driver_hold(running: Running) -> None:
    """The driver gets references of a few hundred bytes; loaded, they are the tensors that it would get."""
    import ray
    from ray import cloudpickle

    from verl_omni.trainer.generation import sample_generation, verl_batches
    from verl_omni.utils import sample_store

    loop = running.stack.agent_loop

    def batch(*, stored: bool) -> Any:
        return sample_generation.training_requests(
            running.rows[:2], n=2, step=1, version=0, seed=3, keeps_media=False, stores_tensors=stored
        )

    direct = sample_generation.generate_scored(running.config, loop, batch(stored=False))
    kept = sample_generation.generate_scored(running.config, loop, batch(stored=True))
    stored = verl_batches.requests_to_verl(batch(stored=True))
    request = len(cloudpickle.dumps(stored))
    assert kept.scores.tolist() == direct.scores.tolist() and kept.versions == direct.versions
    assert kept.images is None and len({stats.luminance for stats in kept.statistics}) == 4
    loaded = sample_store.load([[sample] for sample in kept.stored], lambda refs: ray.get(refs, timeout=60))
    assert set(loaded) == set(direct.tensors)
    for name, value in loaded.items():
        tensor = value.to(torch.device("cpu"))
        expected = direct.tensors[name]
        padding = expected[:, tensor.shape[1] :] if tensor.ndim > 1 else expected[:0]
        assert torch.equal(tensor, expected[:, : tensor.shape[1]] if tensor.ndim > 1 else expected), name
        assert not padding.any()
    assert len({sample.reference for sample in kept.stored}) == 1, "one object for the batch of each agent-loop worker"
    reply = len(cloudpickle.dumps(loop.generate_sequences(stored)))
    assert (request + reply) / len(kept.scores) < 4096


def test_an_update_changes_the_samples_and_a_restored_adapter_restores_them(running: Running, tmp_path: Path) -> None:
    from verl import DataProto

    stack = running.stack
    counted = Leftovers()
    before = evaluate(running)
    stack.workers.save_checkpoint(str(tmp_path))
    samples = train_batch(running, step=1, version=0)
    batch = {**samples.tensors, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0])}
    sampler = {"noise_level": 0.7, "sde_type": "sde", "guidance_scale": 1.0, "tolerance": 1e-4}
    for _ in range(3):
        sampler["tolerance"] = 10.0 if _ else 1e-4
        answer = stack.workers.update_actor(DataProto.from_dict(tensors=batch, meta_info={"request": dict(sampler)}))
    assert answer.meta_info["metrics"]["actor/grad_norm"][0] > 0
    stack.weights.update_weights(global_steps=1)
    changed = evaluate(running)
    assert changed.versions == [1, 1, 1]
    assert not torch.equal(before.images, changed.images), "the new adapter has no effect"
    stack.workers.load_checkpoint(str(tmp_path))
    stack.weights.update_weights(global_steps=2)
    restored = evaluate(running)
    assert torch.equal(before.images, restored.images) and restored.versions == [2, 2, 2]
    assert stack.versions() == [2]
    counted.none()


def test_a_failed_sample_names_prompt_replica_and_version(running: Running) -> None:
    from omegaconf import OmegaConf, open_dict

    from verl_omni.agent_loop import DiffusionAgentLoopWorker
    from verl_omni.agent_loop.rows import SampleFailed
    from verl_omni.trainer.generation import sample_generation, verl_batches
    from verl_omni.workers.rollout.llm_server import DiffusionLLMServerClient

    config = OmegaConf.create(OmegaConf.to_container(running.config))
    with open_dict(config):
        config.actor_rollout_ref.rollout.val_kwargs.pipeline.output_type = "sculpture"
    client = running.stack.servers.get_client(client_cls=DiffusionLLMServerClient)
    requests = sample_generation.evaluation_requests(running.rows, seed=7, version=2)
    prompts = verl_batches.requests_to_verl(requests)
    address = re.escape(running.stack.servers.server_addresses[0])
    # All three fail at once, in any order.
    named = "|".join(f"row {row} of 3 at weight version 2 .*{prompt}" for row, prompt in enumerate(PROMPTS))
    with pytest.raises(SampleFailed, match=f"({named}).*replica {address}: (?s:.*)Unknown output_type 'sculpture'"):
        asyncio.run(DiffusionAgentLoopWorker(config, client).generate_sequences(prompts))
    assert evaluate(running).versions == [2, 2, 2]


def test_every_query_about_trainer_and_replicas_has_data_on_a_real_prometheus(
    running: Running, programs: prometheus.Programs, tmp_path: Path
) -> None:
    """A run of two steps, scraped where Ray exports metrics, with the labels that a PodMonitor gives."""
    import ray

    from verl_omni.trainer.main_diffusion import build_loop
    from verl_omni.trainer.run.run_folder import RunFolder
    from verl_omni.trainer.run.step_checkpoints import RunRequests
    from verl_omni.utils.metrics import exported_metrics as exported

    folder = RunFolder(tmp_path / "run")
    requests = RunRequests(lambda: False)
    build_loop(running.config, running.stack, folder, running.rows, running.rows, requests).fit(None)
    (port,) = {node["MetricsExportPort"] for node in ray.nodes()}
    labels = {"namespace": "ml", "diffusionrl_job": "red", "attempt": "1", "pod": "red-head"}
    values = {"namespace": "ml", "job": "red", "__rate_interval": "1m"}
    queries = [
        query.with_values(values)
        for query in dashboards.queries("omni-job")
        # GPUs are not everywhere, and the operator exports the others.
        if "(ray_omni_" in query.expression or query.expression.startswith(("ray_node_cpu", "ray_node_mem"))
    ]
    assert len(queries) > 10
    with prometheus.scraping(programs, f"127.0.0.1:{port}", tmp_path, labels=labels) as server:
        server.await_data(queries)
        absent = (*exported.OF_FAULTS, *exported.OF_A_STORE, *exported.OF_STANDALONE_REPLICAS, *exported.OF_A_JUDGE)
        expected = [metric for metric in (*exported.TRAINER, *exported.ROLLOUT) if metric not in absent]
        server.await_data(exported.PREFIX + metric.name for metric in expected)
        for query, value in {
            "ray_omni_step": 2,
            "ray_omni_steps": 2,
            "ray_omni_samples_generated_total": 8,
            "ray_omni_samples_trained_total": 8,
            "ray_omni_weight_version_published": 2,
            'ray_omni_weight_version_served{replica="0"}': 2,
            'ray_omni_rollout_requests_in_flight{replica="0"}': 0,
            "ray_omni_samples_collapsed": 0,
        }.items():
            server.await_equal(query, value)
        (step,) = server.query("ray_omni_step")
        assert step["metric"].items() >= labels.items() and "WorkerId" in step["metric"]
        # Adapters of the tests above are counted too; a pair of matrices alone has more bytes than this.
        assert server.await_value("ray_omni_weight_update_bytes_total") > 4 * 64 * RANK
        seconds = server.await_value('ray_omni_phase_seconds_total{phase="update"}')
        spent = sum(line["timing_s/update"] for line in RunFolder(tmp_path / "run").metrics() if line["step"])
        assert seconds == pytest.approx(spent)


def test_200_steps_leave_nothing_in_the_store_the_engine_and_its_workers(running: Running) -> None:
    """Each step generates stored samples and publishes an adapter; counted from the 50th on, in the processes."""
    import ray

    from verl_omni.trainer.generation import sample_generation

    def held(actor: Any) -> tuple[int, int, int]:  # runs in the actor, where this module cannot be imported
        import ctypes
        import gc

        import psutil
        from ray._private.worker import global_worker

        gc.collect()
        ctypes.CDLL(None).malloc_trim(0)
        references = len(global_worker.core_worker.get_all_reference_counts())
        return len(gc.get_objects()), references, psutil.Process().memory_info().rss

    stack = running.stack
    (server,) = stack.servers.server_handles
    (loop,) = stack.agent_loop.agent_loop_workers
    measured = []
    stack.weights.update_weights(global_steps=0)
    for step in range(1, 201):
        prompts = sample_generation.training_requests(
            running.rows[:1], n=1, step=step, version=step - 1, seed=3, keeps_media=False, stores_tensors=True
        )
        assert sample_generation.generate_scored(running.config, stack.agent_loop, prompts).stored
        stack.weights.update_weights(global_steps=step)
        if step in (50, 200):
            measured.append([ray.get(actor.__ray_call__.remote(held), timeout=60) for actor in (loop, server)])
    for name, before, after in zip(("agent loop", "server"), *measured, strict=True):
        grown = Held(*(new - old for new, old in zip(after, before, strict=True)))
        assert grown.objects < 100 and grown.references < 100, (name, grown)
        assert grown.resident < 150 * 32 * 1024, (name, grown)  # pixels and latents of a sample

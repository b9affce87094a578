"""Stable Diffusion 3 and Qwen-Image one step at a time, on vLLM-Omni's engine in this process."""

import argparse
import asyncio
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
import torch

from tests.ml.engine.local_engine import LocalEngine, command_line
from tests.ml.engine.replica_driver import announced
from tests.ml.workers.rollout.fake_engine import server_with

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

STEPS = 4
AT_ONCE = 4
# tokens of a prompt; over HTTP a request has the model's default
LENGTH = 32
OTHER_LENGTH = 64
HTTP_STEPS = 100
SEEDS = (1, 2, 3, 4)


# What the trainer needs of each sample, besides what the family's velocity reads.
RECORDED = ("all_latents", "all_timesteps", "all_sigmas", "velocity_projections")


@pytest.fixture(scope="module", params=["sd3", "qwen_image"])
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    from verl_omni.models.tiny import MAKERS

    folder: Path = tmp_path_factory.mktemp("tiny") / str(request.param)
    MAKERS[str(request.param)](folder)
    return folder


class Drawn(NamedTuple):
    """Samples one by one, the same batched, and the first one next to a request whose prompt has another length.

    `forwards` are the batch sizes of the transformer's forward passes in `together`, and `steps` the batch sizes of the
    engine's steps in `mixed`.
    """

    alone: list[Any]
    together: list[Any]
    forwards: list[int]
    mixed: Any
    steps: list[int]


def drawn(model: Path, *, step_execution: bool) -> Drawn:
    return asyncio.run(_drawn(model, step_execution))


async def _drawn(model: Path, step_execution: bool) -> Drawn:
    from verl_omni.pipelines.registry import family
    from verl_omni.utils.registry import load

    forwards = list[int]()
    steps = list[int]()
    pipeline = load(family(architecture_of(model)).pipeline)
    plain = pipeline.predict_noise_maybe_with_cfg
    step = pipeline.denoise_step

    def counted(self: Any, guided: bool, scale: Any, positive: Any, *rest: Any) -> Any:
        forwards.append(positive["hidden_states"].shape[0])
        return plain(self, guided, scale, positive, *rest)

    def counted_step(self: Any, batch: Any, **more: Any) -> Any:
        steps.append(batch.num_reqs)
        return step(self, batch, **more)

    pipeline.predict_noise_maybe_with_cfg = counted
    pipeline.denoise_step = counted_step
    engine_kwargs = {"vllm_omni": {"request_batch_max_wait_ms": 250.0}}
    engine = LocalEngine(model, AT_ONCE, step_execution=step_execution, engine_kwargs=engine_kwargs)

    async def sample(seed: int, length: int = LENGTH) -> Any:
        guided = 1.0 + (seed > 2)
        params = {
            "height": 64,
            "width": 64,
            "num_inference_steps": STEPS,
            "guidance_scale": guided,
            "true_cfg_scale": guided,
            "max_sequence_length": length,
            "seed": seed,
            "logprobs": True,
            "noise_level": 0.7,
            "sde_window_size": 2,
        }
        return await engine.sample(f"{seed}-{length}", "a red circle", params)

    try:
        alone = [await sample(seed) for seed in SEEDS]
        forwards.clear()
        together = await asyncio.gather(*[sample(seed) for seed in SEEDS])
        counts = list(forwards)
        steps.clear()
        mixed, _ = await asyncio.gather(sample(SEEDS[0]), sample(SEEDS[1], OTHER_LENGTH))
        return Drawn(alone, together, counts, mixed, steps)
    finally:
        engine.shutdown()
        pipeline.predict_noise_maybe_with_cfg = plain
        pipeline.denoise_step = step


def test_step_execution_gives_the_same_samples_as_whole_requests(model: Path) -> None:
    """Two requests with guidance and two without, which cannot share a batch; images and recorded tensors.

    Also next to a request whose prompt has another length, as those over HTTP have.
    """
    from verl_omni.pipelines.registry import NEGATIVE, training_adapter

    by_request = drawn(model, step_execution=False).alone
    stepped, together, forwards, mixed, steps = drawn(model, step_execution=True)
    for expected, sample in zip(by_request, stepped, strict=True):
        assert torch.equal(expected.diffusion_output, sample.diffusion_output)
        assert torch.equal(expected.log_probs, sample.log_probs) and expected.log_probs.shape == (2,)
        assert expected.extra_fields.keys() == sample.extra_fields.keys()
        read = set(training_adapter(architecture_of(model)).CONDITIONS)
        assert {name for name in read if not name.startswith(NEGATIVE)} <= expected.extra_fields.keys()
        for name in {*RECORDED, *read & expected.extra_fields.keys()}:
            assert torch.equal(expected.extra_fields[name], sample.extra_fields[name]), name
    assert sum(forwards) == STEPS * len(SEEDS), "every request takes each of its steps once"
    assert max(forwards) > 1, "nothing was batched"
    assert max(steps) == 2, "they shared no step"
    for expected, sample in zip([*stepped, stepped[0]], [*together, mixed], strict=True):
        for name in ("velocity_projections", "all_latents"):
            torch.testing.assert_close(expected.extra_fields[name], sample.extra_fields[name], rtol=1e-3, atol=1e-4)
        assert (expected.diffusion_output.int() - sample.diffusion_output.int()).abs().max() <= 1


def test_weights_change_after_an_abort_between_two_steps_but_not_before(tmp_path: Path) -> None:
    from verl_omni.models.tiny import MAKERS

    MAKERS["sd3"](tmp_path / "sd3")
    asyncio.run(_aborted_and_updated(tmp_path / "sd3"))


async def _aborted_and_updated(model: Path) -> None:
    from safetensors.torch import load_file
    from vllm_omni.entrypoints import AsyncOmni
    from vllm_omni.inputs.data import OmniDiffusionSamplingParams

    from verl_omni.pipelines.registry import family
    from verl_omni.utils.registry import load
    from verl_omni.weight_sync import ipc
    from verl_omni.workers.config import DiffusionModelConfig, DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.server.engine_replies import EngineControlError, wait_until
    from verl_omni.workers.rollout.vllm_rollout.server.http_app import PolicyEngine
    from verl_omni.workers.rollout.vllm_rollout.server.model_mode import WORKER_EXTENSION

    settings = DiffusionModelConfig(path=str(model))
    server = server_with(None)
    server.config = DiffusionRolloutConfig(step_execution=True)
    server.model_config = settings
    arguments = server._mode.engine_args(command_line(model, 1, WORKER_EXTENSION), server.config, settings)
    pipeline = load(family(settings.architecture).pipeline)
    plain = pipeline.predict_noise_maybe_with_cfg
    steps = []

    def counted(self: Any, *given: Any) -> Any:
        steps.append(given)
        return plain(self, *given)

    pipeline.predict_noise_maybe_with_cfg = counted
    server.engine = AsyncOmni(**arguments)
    steps.clear()  # steps of the engine's own warm-up
    params = {"height": 64, "width": 64, "num_inference_steps": 2000, "max_sequence_length": 32}
    ids = settings.tokenizer("a red circle").input_ids
    weights = load_file(model / "transformer" / "diffusion_pytorch_model.safetensors")
    del weights["pos_embed.pos_embed"]  # a constant: no update carries it
    sent = {f"transformer.{name}": tensor for name, tensor in weights.items()}
    handle, update = announced(f"abort-{os.getpid()}", 30.0)

    async def updated() -> None:
        sending = asyncio.to_thread(
            ipc.send, iter(sent.items()), handle=handle, bucket_bytes=1 << 16, device=None, deadline=30.0
        )
        receiving = server.collective_rpc("update_weights_from_ipc", kwargs=update)
        count, (answer,) = await asyncio.gather(sending, receiving)
        assert count == answer["tensors"] == len(sent)

    async def over_http() -> list[Any]:
        sampling = OmniDiffusionSamplingParams(height=64, width=64, num_inference_steps=HTTP_STEPS)
        engine = PolicyEngine(server.engine, server._policy, server._http)
        return [output async for output in engine.generate({"prompt": "a lawn"}, sampling_params_list=[sampling])]

    try:
        running = asyncio.create_task(server.generate(ids, params, "a"))
        await wait_until(lambda: bool(steps), deadline=60, waiting_for="the first step")
        with pytest.raises(EngineControlError, match="1 requests are between two denoising steps"):
            await server.collective_rpc("update_weights_from_ipc", kwargs=update)
        assert not running.done(), "the refused update leaves it alone"
        taken = len(steps)
        await wait_until(lambda: len(steps) > taken, deadline=60, waiting_for="a step after the refused update")
        await server.abort_all_requests()
        assert (await running).stop_reason == "aborted"
        await updated()
        await server.resume_generation()
        # Training does not abort a request over HTTP. It starts again after the update.
        taken = len(steps)
        visitor = asyncio.create_task(over_http())
        await wait_until(lambda: len(steps) > taken, deadline=60, waiting_for="a step of the request over HTTP")
        await updated()
        (output,) = await visitor
        assert output.images and len(steps) - taken > HTTP_STEPS, "it did not start again"
        after = await server.generate(ids, {**params, "num_inference_steps": 2}, "b")
        assert after.stop_reason == "completed"
    finally:
        server.engine.shutdown()
        pipeline.predict_noise_maybe_with_cfg = plain


def architecture_of(model: Path) -> str:
    return str(json.loads((model / "model_index.json").read_text())["_class_name"])


def test_a_family_that_is_generated_as_whole_requests_refuses_step_execution() -> None:
    from verl_omni.pipelines.registry import FAMILIES
    from verl_omni.utils.registry import load
    from verl_omni.workers.config import DiffusionRolloutConfig
    from verl_omni.workers.rollout.vllm_rollout.server.diffusion_mode import DiffusionMode

    for architecture, description in FAMILIES.items():
        assert description.stepwise == getattr(load(description.pipeline), "supports_step_execution", False)
        if description.stepwise:
            continue
        with pytest.raises(ValueError, match=rf"step_execution: {architecture} is generated as whole requests only"):
            DiffusionMode().engine_args(
                argparse.Namespace(),
                DiffusionRolloutConfig(step_execution=True),
                SimpleNamespace(architecture=architecture),
            )

"""Samples that stay in the object store: what the driver gets, what is stored, and its size for real shapes."""

import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from verl_omni.pipelines.sd3.training import CONDITIONS
from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder
from verl_omni.utils.packed_tensors import PackedTensors
from verl_omni.utils.sample_store import load
from verl_omni.workers.rollout.replica import DiffusionOutput
from verl_omni.workers.rollout.vllm_rollout.server.outputs import SampleFormat, to_diffusion_output

pytestmark = pytest.mark.slow  # reads a model and all settings for each

MEGABYTE = 1e6
# Stable Diffusion 3.5 medium at 512 px: 16 latent channels at an eighth of the side, 77 CLIP and 256 T5 tokens.
LATENT = (16, 64, 64)
EMBEDS = (333, 4096)
POOLED = (2048,)
STEPS = 10
SAMPLES_PER_PROMPT = 24
PROMPTS = 4


class Store:
    """An object store that keeps the pickled sizes of its objects, and the objects if asked to."""

    def __init__(self, *, keep: bool = True) -> None:
        self.objects: list[PackedTensors] = []
        self.sizes: list[int] = []
        self.keep = keep

    def __call__(self, packed: PackedTensors) -> int:
        self.sizes.append(len(pickle.dumps(packed)))
        if self.keep:
            self.objects.append(packed)
        return len(self.sizes) - 1

    def get(self, references: list[int]) -> list[PackedTensors]:
        return [self.objects[reference] for reference in references]


def numbered(engine: type) -> type:
    """The fake engine with embeddings that depend on the prompt, and log-probabilities on the number of the sample."""

    class Numbered(engine):  # type: ignore[misc]
        async def generate(self, request_id: str, **request: Any) -> DiffusionOutput:
            number = float(len(self.asked))
            output: DiffusionOutput = await super().generate(request_id, **request)
            output.extra_fields["prompt_embeds"] = torch.full((4, 500), float(sum(request["prompt_ids"])))
            return output.model_copy(update={"log_probs": torch.full((2,), number)})

    return Numbered


FIELDS = {
    "pooled_prompt_embeds": torch.ones(7),
    "negative_prompt_embeds": torch.ones(4, 5, dtype=torch.bfloat16),
    "negative_pooled_prompt_embeds": torch.ones(7),
    "all_latents": torch.ones(3, 2),
    "all_timesteps": torch.ones(2),
    "all_sigmas": torch.ones(3),
    "sigma_max": torch.ones(1),
    "not_for_training": torch.ones(9),
}
TRAINING: dict[str, Any] = {"global_steps": 3, "carry_responses": False, "store_samples": True}


async def test_the_driver_gets_scores_versions_and_references_only(
    worker: Any, batch: Any, engine: Any, rewards: Any
) -> None:
    loop_worker = worker(engine=numbered(engine)(**FIELDS), rewards=[rewards()])
    loop_worker.put = Store()
    rows = batch(["a", "a", "b"], TRAINING, uid=["u", "u", "v"], data_source=["s"] * 3)
    output = await loop_worker.generate_sequences(rows)
    shapes = {name: tuple(tensor.shape) for name, tensor in output.batch.items()}
    assert shapes == {"prompts": (3, 0), "rm_scores": (3, 1)}
    assert set(output.non_tensor_batch) == {"__sample__", "acc", "__num_turns__"}
    assert list(output.non_tensor_batch["acc"]) == [0.0, 1.0, 2.0], "in the order of the rows"
    assert [sample.version for sample in output.non_tensor_batch["__sample__"]] == [3, 3, 3]


async def test_what_is_stored_is_what_training_reads(worker: Any, batch: Any, engine: Any, rewards: Any) -> None:
    loop_worker = worker(engine=numbered(engine)(**FIELDS), rewards=[rewards()])
    store = loop_worker.put = Store()
    output = await loop_worker.generate_sequences(batch(["a", "a", "b"], TRAINING, data_source=["s"] * 3))
    samples = output.non_tensor_batch["__sample__"]
    tensors = load([[sample.stored] for sample in samples], store.get)
    recorded_names = {"all_latents", "all_timesteps", "all_sigmas", "sigma_max", "rollout_log_probs"}
    assert set(tensors) == recorded_names | set(CONDITIONS)
    assert tensors["rollout_log_probs"].tolist() == [[0, 0], [1, 1], [2, 2]], "in the order of the rows"
    assert len(store.objects) == 1, "one object for the batch"
    embeds = tensors["prompt_embeds"]
    assert embeds.index.tolist() == [0, 0, 1] and embeds.table.shape == (2, 4, 500), "embeddings once per prompt"


def recorded(prompt: torch.Tensor, seed: int) -> DiffusionOutput:
    """A sample of the real recorder and the real conversion of outputs, with the shapes and dtypes of the model."""
    dtype = torch.bfloat16
    arguments = {"noise_level": 0.7, "sde_type": "sde", "logprobs": True, "weights_version": True}
    params = SimpleNamespace(
        extra_args=arguments, num_inference_steps=STEPS, generator=torch.Generator().manual_seed(seed)
    )
    recorder = TrajectoryRecorder([params], torch.device("cpu"), steps=STEPS, dtype=dtype, version=0)
    sigmas = torch.linspace(1, 0, STEPS + 1)
    conditions = {
        "prompt_embeds": prompt.expand(1, *EMBEDS),
        "pooled_prompt_embeds": torch.zeros(1, *POOLED, dtype=dtype),
        "negative_prompt_embeds": prompt.expand(1, *EMBEDS),
        "negative_pooled_prompt_embeds": torch.zeros(1, *POOLED, dtype=dtype),
    }
    recorder.denoise(lambda x, t: x, torch.zeros(1, *LATENT, dtype=dtype), sigmas[:-1] * 1000, sigmas, conditions)
    output = SimpleNamespace(output=torch.zeros(1, 3, 8, 8))
    recorder.attach([output], "image")
    wrapped = output.output
    result = SimpleNamespace(
        images=[wrapped["payload"]["image"]],
        multimodal_output={"metadata": wrapped["metadata"]},
        trajectory_latents=output.trajectory_latents,
        trajectory_timesteps=output.trajectory_timesteps,
        trajectory_log_probs=output.trajectory_log_probs,
    )
    return to_diffusion_output(result, SampleFormat(log_probs=True), global_steps=0)


async def test_a_sample_of_a_real_model_costs_at_most_a_megabyte_and_a_half(
    worker: Any, batch: Any, rewards: Any
) -> None:
    """Pixels go to the scorer and are dropped; everything else that a sample carries is counted."""

    class Real:
        async def generate(self, request_id: str, **request: Any) -> DiffusionOutput:
            text = torch.full(EMBEDS, float(sum(request["prompt_ids"])), dtype=torch.bfloat16)
            return recorded(text, request["sampling_params"]["seed"])

    class Zero(rewards):  # type: ignore[misc]
        async def remote(self, data: Any) -> dict[str, Any]:
            return {"reward_score": 0.0, "reward_extra_info": {}}

    loop_worker = worker(
        "actor_rollout_ref.rollout.pipeline.guidance_scale=4.5",
        "actor_rollout_ref.rollout.max_prompt_embed_length=333",
        f"actor_rollout_ref.rollout.pipeline.num_inference_steps={STEPS}",
        "actor_rollout_ref.rollout.max_concurrent_requests=1",
        engine=Real(),
        rewards=[Zero()],
    )
    store = loop_worker.put = Store(keep=False)
    prompts = [text for text in ["red", "blue", "green", "a cat"] for _ in range(SAMPLES_PER_PROMPT)]
    output = await loop_worker.generate_sequences(batch(prompts, {**TRAINING, "rollout_seed": 1}, uid=prompts))
    size = PROMPTS * SAMPLES_PER_PROMPT
    assert sum(store.sizes) / size <= 1.5 * MEGABYTE
    assert len(pickle.dumps(output)) / size < 4096

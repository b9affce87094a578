"""Samples that stay in the object store: what the driver gets, and what is stored."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from verl_omni.pipelines.sd3.training import CONDITIONS
from verl_omni.utils.packed_tensors import PackedTensors
from verl_omni.utils.sample_store import load
from verl_omni.workers.rollout.diffusion_output import DiffusionOutput

pytestmark = pytest.mark.slow  # reads a model and all settings for each


class Store:
    """An object store that keeps its objects."""

    def __init__(self) -> None:
        self.objects: list[PackedTensors] = []

    def __call__(self, packed: PackedTensors) -> int:
        self.objects.append(packed)
        return len(self.objects) - 1

    def get(self, references: list[int]) -> list[PackedTensors]:
        return [self.objects[reference] for reference in references]


def numbered(engine: type) -> type:
    """The fake engine with embeddings that depend on the prompt, and log-probabilities on the number of the sample."""

    class Numbered(engine):  # type: ignore[misc]
        async def generate(self, request_id: str, **request: Any) -> DiffusionOutput:
            number = float(len(self.asked))
            made: DiffusionOutput = await super().generate(request_id, **request)
            made.extra_fields["prompt_embeds"] = torch.full((4, 500), float(sum(request["prompt_ids"])))
            return made.model_copy(update={"log_probs": torch.full((2,), number)})

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
    made = worker(engine=numbered(engine)(**FIELDS), rewards=[rewards()])
    made.put = Store()
    rows = batch(["a", "a", "b"], TRAINING, uid=["u", "u", "v"], data_source=["s"] * 3)
    output = await made.generate_sequences(rows)
    shapes = {name: tuple(tensor.shape) for name, tensor in output.batch.items()}
    assert shapes == {"prompts": (3, 0), "rm_scores": (3, 1)}
    assert set(output.non_tensor_batch) == {"__sample__", "acc", "__num_turns__"}
    assert list(output.non_tensor_batch["acc"]) == [0.0, 1.0, 2.0], "in the order of the rows"
    assert [sample.version for sample in output.non_tensor_batch["__sample__"]] == [3, 3, 3]


async def test_what_is_stored_is_what_training_reads(worker: Any, batch: Any, engine: Any, rewards: Any) -> None:
    made = worker(engine=numbered(engine)(**FIELDS), rewards=[rewards()])
    store = made.put = Store()
    output = await made.generate_sequences(batch(["a", "a", "b"], TRAINING, data_source=["s"] * 3))
    samples = output.non_tensor_batch["__sample__"]
    tensors = load([[sample.stored] for sample in samples], store.get)
    own = {"all_latents", "all_timesteps", "all_sigmas", "sigma_max", "rollout_log_probs"}
    assert set(tensors) == own | set(CONDITIONS)
    assert tensors["rollout_log_probs"].tolist() == [[0, 0], [1, 1], [2, 2]], "in the order of the rows"
    assert len(store.objects) == 1, "one object for the batch"
    embeds = tensors["prompt_embeds"]
    assert embeds.index.tolist() == [0, 0, 1] and embeds.table.shape == (2, 4, 500), "embeddings once per prompt"

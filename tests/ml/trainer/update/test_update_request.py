"""The request of an update: stored samples give the ranks the tensors that samples in the driver would."""

from dataclasses import replace

import pytest
import torch
from verl.utils.config import omega_conf_to_dataclass

from tests.ml import smallest_job
from verl_omni.samples import SAMPLE, ScoredSamples, TrainingBatch
from verl_omni.trainer.generation.verl_batches import update_to_verl
from verl_omni.utils.packed_tensors import PackedTensors
from verl_omni.utils.sample_store import SampleWriter, load
from verl_omni.workers.algorithms.base import training_algorithm
from verl_omni.workers.algorithms.registered import ALGORITHMS

pytestmark = pytest.mark.slow  # composes all settings for each

GROUPS = ["a", "b", "a", "b", "a", "b"]


def samples() -> ScoredSamples:
    rows = torch.arange(6).float()
    prompts = torch.tensor([ord(group) for group in GROUPS]).float()
    return ScoredSamples(
        tensors={
            "clean_latents": rows.view(-1, 1, 1, 1).expand(-1, 2, 2, 2),
            "prompt_embeds": prompts.view(-1, 1, 1).expand(-1, 3, 400),
        },
        images=None,
        scores=torch.tensor([1.0, 5.0, 3.0, 5.0, 2.0, 6.0]),
        extras={},
        versions=[0] * 6,
        groups=GROUPS,
        seconds=0.0,
        scoring_seconds=0.0,
    )


@pytest.mark.parametrize("name", ALGORITHMS)
def test_ranks_train_on_the_same_rows_of_stored_samples(name: str) -> None:
    config = smallest_job.load(
        f"actor_rollout_ref.actor.diffusion_loss.loss_mode={name}", "actor_rollout_ref.model.lora_rank=4"
    )
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
    direct = samples()
    objects: list[PackedTensors] = []
    writer = SampleWriter(lambda packed: objects.append(packed) or len(objects) - 1)  # type: ignore[func-returns-value]
    for row in range(len(GROUPS)):
        writer.add({name: direct.tensors[name][row] for name in direct.tensors})
    stored = writer.finish()
    referred = replace(direct, tensors={SAMPLE: torch.arange(6)}, stored=stored)
    algorithm = training_algorithm(name)
    expected = algorithm.training_batch(direct, loss, config, 1)
    request = update_to_verl(TrainingBatch(algorithm.training_batch(referred, loss, config, 1), stored, {"step": 1}))
    assert request.meta_info == {"request": {"step": 1}} and SAMPLE not in request.batch
    parts = request.chunk(2) if len(request) % 2 == 0 else [request]
    loaded_tensors: dict[str, list[torch.Tensor]] = {}
    for part in parts:  # each rank loads its own rows
        loaded = load(part.non_tensor_batch["stored"], lambda references: [objects[ref] for ref in references])
        for key, value in {**loaded, **dict(part.batch)}.items():
            loaded_tensors.setdefault(key, []).append(value.to(torch.device("cpu")))
    assert set(loaded_tensors) == set(expected)
    for key, values in loaded_tensors.items():
        assert torch.equal(torch.cat(values), expected[key]), key

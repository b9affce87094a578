"""The agent loop without an engine: seeds, fan-out, padding, collation."""

import pickle
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from ray.exceptions import RayActorError, RayTaskError
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import AgentLoopMetrics

from verl_omni.agent_loop import DiffusionAgentLoopOutput, DiffusionSingleTurnAgentLoop, batching
from verl_omni.agent_loop.output import _InternalDiffusionAgentLoopOutput, sample_of
from verl_omni.agent_loop.rows import SampleFailed, SampleLost, run_rows
from verl_omni.agent_loop.utils import maybe_per_rollout_seeds
from verl_omni.workers.rollout.replica_calls import ReplicaLost


@given(st.integers(0, 2**40), st.integers(1, 50), st.data())
@settings(deadline=None)
def test_seeds_do_not_depend_on_how_a_batch_is_split(base: int, size: int, data: st.DataObject) -> None:
    cut = data.draw(st.integers(0, size))
    meta = {"rollout_seed": base}
    seeds = maybe_per_rollout_seeds(meta, size)
    first = maybe_per_rollout_seeds(meta, cut, list(range(cut)))
    second = maybe_per_rollout_seeds(meta, size - cut, list(range(cut, size)))
    assert seeds is not None and first is not None and second is not None
    assert seeds == first + second and len(set(seeds)) == size
    assert seeds[-1] == (base * 1_000_003 + size - 1) % (2**63 - 1)


def test_seeds_are_optional_and_need_one_index_per_row() -> None:
    assert maybe_per_rollout_seeds({}, 3) is None
    with pytest.raises(ValueError, match="Expected 3 global rollout indices, got 2"):
        maybe_per_rollout_seeds({"rollout_seed": 1}, 3, [0, 1])


@pytest.mark.parametrize(
    ("error", "kind"),
    [(RayActorError(), SampleLost), (RayActorError(error_msg='  File "a.py", line 1\nOSError: no'), SampleFailed)],
)
async def test_a_row_whose_replica_is_gone_is_lost(error: Exception, kind: type[Exception]) -> None:
    """And over Ray, which keeps the class of an error and not what it was raised from."""

    async def run(row: int) -> None:
        raise ReplicaLost("10.0.0.3:80", str(error)) from error

    with pytest.raises(SampleFailed) as failure:
        await run_rows(1, run, lambda row: f"prompt {row}")
    carried = pickle.loads(pickle.dumps(failure.value))
    assert (type(failure.value), type(carried), carried.__cause__) == (kind, kind, None)


async def test_a_row_fails_with_an_error_that_was_raised_from_ray_s_wrapper_of_it() -> None:
    """As the client of the replicas does."""
    error = ValueError("edits 1 image")

    async def run(row: int) -> None:
        raise error from RayTaskError("generate", "Traceback", error)

    with pytest.raises(SampleFailed, match="prompt 0 failed: ValueError: edits 1 image") as failure:
        await run_rows(1, run, lambda row: f"prompt {row}")
    assert type(failure.value) is SampleFailed


@given(st.integers(1, 12), st.integers(0, 12))
@settings(deadline=None)
def test_embeddings_are_padded_and_never_truncated(length: int, room: int) -> None:
    value = torch.randn(length, 3)
    padded = batching._pad_prompt_extra_field("prompt_embeds", value, length + room)
    assert padded.shape == (length + room, 3)
    assert torch.equal(padded[:length], value) and not padded[length:].any()
    with pytest.raises(ValueError, match="negative_prompt_embeds sequence length"):
        batching._pad_prompt_extra_field("negative_prompt_embeds", value, length - 1)


def row(score: float | None = 1.0, **fields: Any) -> _InternalDiffusionAgentLoopOutput:
    return _InternalDiffusionAgentLoopOutput(
        prompt_ids=torch.ones(1, 4, dtype=torch.int64),
        response_diffusion_output=torch.zeros(1, 3, 2, 2, dtype=torch.uint8),
        response_logprobs=torch.zeros(1, 5),
        reward_score=score,
        num_turns=2,
        metrics=AgentLoopMetrics(),
        extra_fields=fields,
    )


BOXES: Any = ([[1, 2], [1]], [[1, 2], [3, 4]], [np.zeros(2), np.ones(2)], [torch.zeros(2), torch.zeros(3)], ["a", 1])


@pytest.mark.parametrize("values", BOXES)
def test_a_scorer_s_field_that_is_no_number_is_a_column_of_objects(values: list[Any]) -> None:
    batch = batching.collate([row(reward_extra_info={"found": value}) for value in values], {})
    column = batch.non_tensor_batch["found"]
    assert column.dtype == object and column.shape == (2,)
    assert all(stored is value for stored, value in zip(column, values, strict=True))
    nested = batching.collate([row(reward_extra_info={"found": [[5]]})], {})
    assert len(DataProto.concat(batching.align([batch, nested]))) == 3, "batches of two workers are joined"


def test_a_scorer_s_numbers_are_an_array() -> None:
    batch = batching.collate([row(reward_extra_info={"hit": True, "iou": value}) for value in (1, 0.5)], {})
    assert batch.non_tensor_batch["hit"].dtype == bool and batch.non_tensor_batch["iou"].dtype == np.float64
    batch = batching.collate(
        [row(reward_extra_info={"iou": value}) for value in (torch.tensor(0.5), np.float32(1))], {}
    )
    assert batch.non_tensor_batch["iou"].tolist() == [0.5, 1.0]


def test_scores_need_every_row_and_tensors_must_be_in_every_row() -> None:
    assert "rm_scores" not in batching.collate([row(), row(score=None)], {}).batch
    with pytest.raises(KeyError, match=r"all_latents is missing in rows \[1\]"):
        batching.collate([row(all_latents=torch.zeros(1, 2)), row()], {})


def test_the_open_fields_of_a_loop_become_a_sample() -> None:
    pixels = torch.zeros(3, 2, 2, dtype=torch.uint8)
    fields = {"global_steps": 4, "audio": torch.ones(3), "times_lost": 2, "boxes": torch.ones(2), "tries": 1}
    recorded = {"all_latents": torch.ones(3, 2), "prompt_embeds": torch.ones(4, 5), "sigma_max": torch.ones(1)}
    masks = {"prompt_embeds_mask": torch.ones(4), "negative_prompt_embeds": None}
    output = DiffusionAgentLoopOutput(
        prompt_ids=[1],
        response_diffusion_output=pixels,
        response_logprobs=torch.ones(2),
        metrics=AgentLoopMetrics(),
        extra_fields={**fields, **recorded, **masks},
    )
    sample = sample_of(output, ("prompt_embeds", "negative_prompt_embeds"))
    assert sample.media is pixels and (sample.version, sample.times_lost, sample.times_aborted) == (4, 2, 0)
    assert sample.scorer_fields.keys() == {"global_steps", "audio", "boxes", "tries"}
    assert list(sample.training_tensors()) == ["all_latents", "sigma_max", "rollout_log_probs", "prompt_embeds"]
    sent = sample.for_trainer(scored_later=False)
    assert sent.training_tensors() == {} and sent.media is None and not sent.scorer_fields and sent.version == 4
    assert sample.for_trainer(scored_later=True).scorer_fields is sample.scorer_fields


@pytest.mark.parametrize(
    ("changes", "error", "message"),
    [
        (None, TypeError, "returned NoneType, and not DiffusionAgentLoopOutput"),
        ({"response_diffusion_output": np.zeros((3, 2, 2))}, TypeError, "a sample of type ndarray, and not a tensor"),
        ({"response_logprobs": [0.5]}, TypeError, "log-probabilities of type list, not a tensor"),
        ({"prompt_ids": []}, ValueError, "returned no prompt_ids"),
        ({"extra_fields": {"uid": "mine"}}, ValueError, "the extra field 'uid', and the batch has a column of that na"),
        ({"extra_fields": {"responses": torch.zeros(3)}}, ValueError, "the extra field 'responses', and the batch has"),
    ],
)
def test_what_no_batch_can_be_made_of_is_refused(
    changes: dict[str, Any] | None, error: type[Exception], message: str
) -> None:
    fields = {"prompt_ids": [1], "response_diffusion_output": torch.zeros(3, 2, 2), "metrics": {}}
    batching.check_loop_output(DiffusionAgentLoopOutput(**fields, extra_fields={"mine": 1}))  # type: ignore[arg-type]
    with pytest.raises(error, match=message):
        batching.check_loop_output(changes if changes is None else DiffusionAgentLoopOutput(**(fields | changes)))


@pytest.mark.slow
@pytest.mark.parametrize(
    ("prompt_ids", "message"),
    [
        (None, "the agent loop returned dict, and not DiffusionAgentLoopOutput"),
        ([1] * 5000, r"returned 5000 prompt_ids, and actor_rollout_ref\.rollout\.prompt_length is \d+: shorten them"),
    ],
)
async def test_the_sample_of_a_users_loop_is_checked(
    worker: Any, batch: Any, monkeypatch: pytest.MonkeyPatch, prompt_ids: list[int] | None, message: str
) -> None:
    async def run(self: Any, sampling_params: Any, **row: Any) -> Any:
        image = torch.zeros(3, 2, 2, dtype=torch.uint8)
        if prompt_ids is None:
            return {"images": [image]}
        return DiffusionAgentLoopOutput(prompt_ids=prompt_ids, response_diffusion_output=image, metrics={})  # type: ignore[arg-type]

    monkeypatch.setattr(DiffusionSingleTurnAgentLoop, "run", run)
    with pytest.raises(SampleFailed, match=message):
        await worker().generate_sequences(batch(["a"]))

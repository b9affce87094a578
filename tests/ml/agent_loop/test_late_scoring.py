"""Scoring after a batch is generated: a scorer gets the same as when samples are scored one by one meanwhile."""

import asyncio
from collections.abc import Callable, Generator
from functools import partial
from types import SimpleNamespace
from typing import Any, ClassVar

import pytest
import torch
from verl import DataProto
from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

from verl_omni.agent_loop import DiffusionSingleTurnAgentLoop
from verl_omni.agent_loop.manager import DiffusionAgentLoopManager
from verl_omni.reward_loop.reward_manager import VisualRewardManager
from verl_omni.reward_loop.scorer_results import ScoringFailure
from verl_omni.samples import ScoredSamples
from verl_omni.trainer.generation.sample_generation import (
    evaluation_requests,
    generate_scored,
    training_requests,
)
from verl_omni.trainer.rewards.reward_workers import RewardWorkers, with_sample

pytestmark = pytest.mark.slow  # reads a model and all settings for each

WORKERS = 2
AUDIO = torch.arange(4.0)
RECORDED = {"all_latents": torch.ones(3, 2), "prompt_embeds": torch.ones(4, 5), "clean_latents": torch.ones(16, 1, 1)}
ROWS = [
    {
        "raw_prompt": [{"role": "user", "content": text}],
        "data_source": "s",
        "note": "the row's",
        "reward_model": {"ground_truth": text},
        "extra_info": {"prompt": text, "index": number},
    }
    for number, text in enumerate(("a", "b"))
]
BOTH = "actor_rollout_ref.rollout.val_kwargs.pipeline.output_type=both"


class AddingLoop(DiffusionSingleTurnAgentLoop):
    """A loop of a user: it adds fields, and scores the samples of some prompts itself."""

    own: ClassVar[dict[str, tuple[float, dict[str, Any]]]] = {}  # prompt -> score, and fields of the score

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> Any:
        output = await super().run(sampling_params, **kwargs)
        text = kwargs["raw_prompt"][0]["content"]
        output.extra_fields |= {"tries": len(text), "boxes": torch.arange(len(text) + 1), "note": "the loop's"}
        output.num_turns = 3
        if text in self.own:
            output.reward_score, output.extra_fields["reward_extra_info"] = self.own[text]
        return output


class ScoringLoop(AddingLoop):
    own: ClassVar = {"a": (7.0, {"acc": 7.0, "own": 1.0})}


class Reference:
    """Reference to tensors in an object store."""

    def __init__(self, tensors: dict[str, torch.Tensor]) -> None:
        self.tensors = tensors

    def __await__(self) -> Generator[None, None, dict[str, torch.Tensor]]:
        yield from ()
        return self.tensors


class Scorers:
    """Reward workers: the arguments of the scorer for each sample, by its ground truth."""

    def __init__(self, config: Any) -> None:
        self.manager = VisualRewardManager(config, None, None)
        self.given: list[dict[str, Any]] = []
        self.compute_score = self.compute_score_batch = self

    async def remote(self, data: DataProto) -> dict[str, Any]:
        return self.score(data)

    def score(self, data: DataProto) -> dict[str, Any]:
        assert data.batch["prompts"].shape == (1, 8)
        self.given.append(self.manager.arguments(data))
        return {"reward_score": 2.0, "reward_extra_info": {"acc": 0.5, "note": "the scorer's", "of": "scorer"}}

    def all(self, data: DataProto) -> DataProto:
        """As `RewardWorkers.compute_rm_score`, without its processes."""
        results = [self.score(asyncio.run(with_sample(data[row : row + 1]))) for row in range(len(data))]
        return RewardWorkers.collected(VisualRewardManager, data, results)


@pytest.fixture
def generate(worker: Any, engine: Any) -> Callable[..., tuple[ScoredSamples, list[dict[str, Any]]]]:
    """Generates and scores a batch, during the generation or after it."""

    def made(later: bool, loop: type, *overrides: str, training: bool) -> tuple[ScoredSamples, list[dict[str, Any]]]:
        _agent_loop_registry["mine"] = {"_target_": f"{__name__}.{loop.__name__}"}
        chosen = f"actor_rollout_ref.rollout.agent.num_workers={WORKERS}"
        loops = [
            worker(
                chosen,
                "actor_rollout_ref.rollout.agent.default_agent_loop=mine",
                "actor_rollout_ref.rollout.n=2",
                "actor_rollout_ref.model.architecture=StableDiffusion3Pipeline",
                *overrides,
                engine=engine(audio=AUDIO, audio_sample_rate=16000, **RECORDED),
                rewards=None,
            )
            for _ in range(WORKERS)
        ]
        scorers = Scorers(loops[0].config)
        for loop_worker in loops:
            loop_worker.put = Reference
            loop_worker.reward_loop_worker_handles = None if later else [scorers]
        manager = DiffusionAgentLoopManager(loops[0].config, None)
        manager.cancel = asyncio.Task.cancel

        def remote(chunk: Any, *, loop: Any) -> asyncio.Task[Any]:
            return asyncio.create_task(loop.generate_sequences(chunk))

        manager.agent_loop_workers = [
            SimpleNamespace(generate_sequences=SimpleNamespace(remote=partial(remote, loop=loop_worker)))
            for loop_worker in loops
        ]
        if training:
            prompts = training_requests(ROWS, n=2, step=1, version=3, seed=0, keeps_media=False, stores_tensors=True)
        else:
            prompts = evaluation_requests(ROWS, seed=0)
        scored = generate_scored(loops[0].config, manager, prompts, scorers.all if later else None)
        return scored, sorted(
            scorers.given, key=lambda request: (request["ground_truth"], str(request["solution_image"]))
        )

    return made


def same(left: Any, right: Any) -> bool:
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    return torch.equal(left, right) if isinstance(left, torch.Tensor) else left == right


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("loop", [AddingLoop, ScoringLoop])
def test_a_scorer_gets_the_same_after_a_generation_as_during_it(generate: Any, loop: type, training: bool) -> None:
    (now, during), (late, after) = (generate(later, loop, training=training) for later in (False, True))
    by_loop = 0 if loop is AddingLoop else 1
    assert len(after) == len(during) == (2 - by_loop) * (2 if training else 1), "what the loop has scored is not scored"
    assert all(same(left, right) for left, right in zip(after, during, strict=True))
    fields = after[-1]["extra_info"]
    assert (fields["tries"], fields["boxes"].tolist(), fields["note"]) == (1, [0, 1], "the loop's")
    assert fields["audio"].tolist() == AUDIO.tolist() and fields["num_turns"] == 3
    assert not set(RECORDED) & set(fields)
    assert now.scores.tolist() == late.scores.tolist()
    assert now.extras == late.extras
    assert (now.images is None) == (late.images is None) == training, "the driver gets no pixels for training"
    assert set(late.extras) == ({"acc", "note", "of"} if loop is AddingLoop else {"acc", "note", "of", "own"})
    assert late.failures == now.failures == []


def test_an_evaluation_with_both_types_of_output_gets_latents_after_a_generation_too(generate: Any) -> None:
    (now, during), (late, after) = (generate(later, AddingLoop, BOTH, training=False) for later in (False, True))
    assert [request["solution_image"].shape for request in after] == [(16, 1, 1)] * 2
    assert all(same(left, right) for left, right in zip(after, during, strict=True))
    assert late.images is not None and now.images is not None and torch.equal(late.images, now.images)


@pytest.mark.parametrize("later", [False, True])
@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((float("nan"), {}), "the score is nan, which is not finite"),
        ((1.0, {"uid": "x"}), "the agent loop returned the field 'uid', and the batch has a column of that name"),
    ],
)
def test_a_score_of_a_loop_that_training_cannot_use_is_refused(
    generate: Any, monkeypatch: pytest.MonkeyPatch, answer: tuple[float, dict[str, Any]], message: str, later: bool
) -> None:
    monkeypatch.setattr(ScoringLoop, "own", {"a": answer})
    with pytest.raises(Exception, match=message):
        generate(later, ScoringLoop, training=True)


@pytest.mark.parametrize("later", [False, True])
def test_samples_that_cannot_be_scored_are_counted_in_the_same_way_after_a_generation(
    generate: Any, monkeypatch: pytest.MonkeyPatch, later: bool
) -> None:
    monkeypatch.setattr(ScoringLoop, "own", {"a": (float("inf"), {})})
    scored, _ = generate(later, ScoringLoop, "reward.max_failed_share=0.5", training=True)
    assert scored.scores.isnan().tolist() == [True, True, False, False]
    text = "prompt 'a': the score is inf, which is not finite"
    assert scored.failures == [ScoringFailure(text), ScoringFailure(text)]
    assert scored.extras["acc"] == [None, None, 0.5, 0.5]
    with pytest.raises(
        Exception, match=r"2 samples have no score, and reward\.max_failed_share allows 1 in this batch"
    ):
        generate(later, ScoringLoop, "reward.max_failed_share=0.25", training=True)

"""The samples of a run, as types, from the wish for one to the batch that the policy is trained on.

    SampleRequest   the trainer wants a sample: a prompt, what scorers need of its row, a seed
      |             agent loop (`agent_loop`): prompt -> token ids; sampling parameters (`agent_loop/sampling.py`)
    RolloutRequest  what a rollout server is asked for (`workers/rollout/vllm_rollout/server/requests.py`)
      |             engine (`pipelines`); it answers with verl-omni's `DiffusionOutput` (`workers/rollout`)
    Sample          what an agent loop made of the answer (`agent_loop/output.py`)
      |             reward workers (`reward_loop`); training tensors go to the object store (`utils/sample_store.py`)
    ScoredSamples   samples with their scores, in the trainer
      |             advantages, pairs, draws of noise (`workers/algorithms`)
    TrainingBatch   the rows of an update, which the ranks train on

Requests, scored samples and training batches are batches of one step, or of one evaluation. In between, verl carries
samples in its `DataProto`, which only the modules that speak to verl know (`tests/architecture/test_verl_batches.py`).
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch
from torch import Tensor

from verl_omni.reward_loop.scorer_results import ScoringFailure
from verl_omni.utils.metrics.image_statistics import ImageStatistics
from verl_omni.utils.sample_store import StoredSample

GENERATED = "__sample__"  # column of verl's batch with the `Sample` of each row, without its tensors
SAMPLE = "sample"  # tensor of a training batch that stands for samples: their places in `ScoredSamples`, int64


@dataclass(frozen=True, slots=True)
class SampleRequest:
    """A sample that the trainer wants.

    Example:
        SampleRequest({"raw_prompt": [{"role": "user", "content": "a red circle"}], "data_source": "shapes"}, "3-0")
    """

    row: Mapping[str, Any]
    """Row of the data set: `raw_prompt` (messages), and further columns for agent loops and scorers."""
    group: str
    """Id of the prompt in the batch; samples with the same one are compared with each other."""
    seed: int | None = None
    """Seed of the sample; None: derived from the seed of the batch and the place in it."""
    keeps_picture: bool = False
    """Whether the pixels come back in `ScoredSamples.pictures`, also if the batch's other pixels do not."""


@dataclass(frozen=True, slots=True)
class SampleRequests:
    """The samples of a training step or of an evaluation.

    Example:
        SampleRequests([SampleRequest(row, "3-0"), SampleRequest(row, "3-0")], version=2, seed=7, finished_steps=2)
    """

    requests: Sequence[SampleRequest]
    """[B]; in training, the samples of a prompt one after the other."""
    version: int | None
    """Version of the weights; None: any, for an evaluation."""
    seed: int | None = None
    """Seed of the batch, for samples without one."""
    finished_steps: int | None = None
    """Training steps before the batch's own, which place a progressive SDE window."""
    is_evaluation: bool = False
    """Whether `rollout.val_kwargs` apply, and nothing is recorded for training."""
    is_only_shown: bool = False
    """Whether the samples are in no metric, so that any number of them may have no score."""
    keeps_media: bool = True
    """Whether pixels or latents come back; otherwise they are dropped once they are scored."""
    stores_tensors: bool = False
    """Whether training tensors stay in the object store, and their references come back."""
    first: int = 0
    """Place of the first request in the batch of the step, from which seeds are derived."""
    part: int | None = None
    """Number of the part of a step; the engine generates one part after the other. None: the whole step."""

    def parts(self, sizes: Sequence[int]) -> list[SampleRequests]:
        """The requests in parts, one after the other."""
        ends = list(itertools.accumulate(sizes))
        return [
            replace(self, requests=self.requests[end - size : end], first=self.first + end - size, part=part)
            for part, (size, end) in enumerate(zip(sizes, ends, strict=True))
        ]

    def prompts(self) -> list[Any]:
        """The messages of each request, [B]."""
        return [request.row["raw_prompt"] for request in self.requests]


@dataclass(frozen=True, slots=True, kw_only=True)
class Recording:
    """What the engine recorded of a sample for training, as far as the algorithm asks for it.

    There is no batch dimension. T of the S denoising steps are in the sample's SDE window. A latent has two dimensions
    or more, by the family: [C, h, w] for Stable Diffusion 3.

    Example:
        Recording(clean_latents=torch.zeros(16, 64, 64), sampler_levels=torch.linspace(1, 0.1, 10))
    """

    clean_latents: Tensor | None = None
    """The final latent, in the model's dtype."""
    sampler_levels: Tensor | None = None
    """Noise levels before each denoising step, from 1 to 0, float32 [S]."""
    all_latents: Tensor | None = None
    """Latents before the window and after each of its steps, [T + 1, ...] in the model's dtype; of a window that is not
    contiguous before and after each step, [2 T, ...]."""
    all_timesteps: Tensor | None = None
    """Times of the recorded steps as the model gets them, in the units of the scheduler, float32 [T]."""
    all_sigmas: Tensor | None = None
    """Noise levels of `all_latents`, from 1 to 0, float32."""
    sigma_max: Tensor | None = None
    """Noise level after the first denoising step (see `algos.sde.moments`), float32 [1]."""
    rollout_log_probs: Tensor | None = None
    """Log-probabilities of the recorded steps, means over the elements of a latent, float32 [T]."""
    velocity_projections: Tensor | None = None
    """Projections of the recorded steps' velocities (see `algos.agreement`), float32 [T, K + 1]."""


NOTHING_RECORDED = Recording()
RECORDED = tuple(field.name for field in fields(Recording))


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """A generated sample, from its agent loop to the reward workers and the trainer.

    Example:
        Sample(media=torch.zeros(3, 512, 512, dtype=torch.uint8), version=2, scorer_fields={"tries": 1})
    """

    media: Tensor | None = None
    """Pixels, uint8 (or float32 from 0 to 1) [C, H, W] or [T, C, H, W], or latents, float32; None in the trainer."""
    recording: Recording = NOTHING_RECORDED
    """What the engine recorded for training; nothing in the trainer."""
    conditions: Mapping[str, Tensor] = field(default_factory=dict)
    """Inputs of the velocity besides latents and time, by the names in the family's `CONDITIONS`, [L, D] or [D]."""
    scorer_fields: Mapping[str, Any] = field(default_factory=dict)
    """Further arguments of scorers: the audio of a video, `audio` (float32) and `audio_sample_rate` (Hz), the weight
    version as `global_steps`, and what an agent loop added."""
    version: int | None = None
    """Version of the weights that generated it; None: the server did not say."""
    score: float | None = None
    """Its reward, NaN if it could not be scored; None: it has none yet. In the trainer, only what a loop gave if the
    other samples are scored later; `ScoredSamples` has the scores."""
    failure: ScoringFailure | None = None
    """Why it could not be scored."""
    statistics: ImageStatistics | None = None
    """Statistics of its pixels; None of latents."""
    picture: Tensor | None = None
    """Its pixels, uint8 [C, H, W] or [T, C, H, W], if its request keeps them."""
    stored: StoredSample | None = None
    """Reference of its training tensors in the object store; None: they are in verl's batch."""
    unscored: Any = None
    """Reference of `prompts` int64 [1, P] and `responses` [1, ...] in the object store, until it is scored later."""
    times_lost: int = 0
    """How often it was lost with its replica, and generated again."""
    times_aborted: int = 0
    """How often its request was aborted, and sent again."""

    def training_tensors(self) -> dict[str, Tensor]:
        """The tensors that training reads, by name."""
        recorded = {name: getattr(self.recording, name) for name in RECORDED}
        return {name: tensor for name, tensor in recorded.items() if tensor is not None} | dict(self.conditions)

    def for_trainer(self, *, scored_later: bool) -> Sample:
        """The sample without tensors, which are in the object store or in verl's batch, or have been scored.

        What scoring needs is left out too, unless samples are scored later: the trainer gets thousands of them.
        """
        lean = replace(self, media=None, recording=NOTHING_RECORDED, conditions={})
        return lean if scored_later else replace(lean, score=None, scorer_fields={})


@dataclass(frozen=True, slots=True)
class ScoredSamples:
    """Generated and scored samples, in the order of the batch's requests.

    Example:
        Two stored samples of one prompt: ScoredSamples(tensors={"sample": tensor([0, 1])}, images=None,
        scores=tensor([0.5, 1.0]), extras={"acc": [0.5, 1.0]}, versions=[2, 2], groups=["3-0", "3-0"], seconds=4.1,
        scoring_seconds=0.2, stored=[StoredSample(reference, 0), StoredSample(reference, 1)])
    """

    tensors: dict[str, Tensor]
    """Training tensors by name, [B, ...]. For stored samples only `SAMPLE`, which stands for all tensors behind their
    references: an algorithm repeats, drops and pairs rows in the same way in both cases."""
    images: Tensor | None
    """uint8 [B, C, H, W], or videos [B, T, C, H, W]; None for latents, and if the media are not kept."""
    scores: Tensor
    """float32 [B]; NaN: the sample could not be scored."""
    extras: dict[str, list[Any]]
    """Further numbers of the scorers, lists of length B by name; None where a sample lacks one."""
    versions: list[Any]
    """Version of the weights of each sample, [B]."""
    groups: list[str]
    """Id of each sample's prompt, [B]."""
    seconds: float
    """Wall time of generation, including scoring."""
    scoring_seconds: float | None
    """Seconds that the batch waited for its slowest reward; None where agent loops do not score."""
    stored: Sequence[StoredSample] = ()
    """References of each sample's training tensors, [B]; empty if the tensors are in `tensors`."""
    failures: Sequence[ScoringFailure] = ()
    """Why samples could not be scored, in their order; only of those."""
    statistics: Sequence[ImageStatistics] = ()
    """Statistics of the pixels, [B]; empty for latents."""
    pictures: Mapping[int, Tensor] = field(default_factory=dict)
    """Pixels of the samples whose requests keep them, uint8 [C, H, W] or [T, C, H, W], by their places."""
    times_lost: int = 0
    """How often a sample of the batch was lost with its replica, and generated again."""
    times_aborted: int = 0
    """How often a request of the batch was aborted, and sent again."""


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The rows of one update, from which verl makes the shares of the ranks.

    Example:
        TrainingBatch({"sample": tensor([0, 1]), "advantages": tensor([-1.0, 1.0])}, stored, {"noise_level": 0.7})
    """

    rows: Mapping[str, Tensor]
    """Tensors by name, [R, ...], as the algorithm's objective takes them. In place of the tensors of stored samples
    there is `SAMPLE`, int64 [R] or, for rows of S samples, [R, S]."""
    stored: Sequence[StoredSample]
    """The samples that `SAMPLE` counts; empty if the tensors are in `rows`."""
    arguments: Mapping[str, Any]
    """Arguments of the algorithm's objective, plain values."""

    @property
    def samples(self) -> int:
        """Number of distinct samples; for samples that are not stored, of rows."""
        if SAMPLE in self.rows:
            return len(torch.unique(self.rows[SAMPLE]))
        return len(next(iter(self.rows.values())))

    def stored_in_rows(self) -> list[tuple[StoredSample, ...]]:
        """The stored samples of each row, [R] tuples of S."""
        places = self.rows[SAMPLE]
        return [tuple(self.stored[number] for number in row) for row in places.view(len(places), -1)]

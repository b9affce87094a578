"""Generated samples as they are shown: with the text of their prompts, their seeds and pictures."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from omegaconf import DictConfig
from torch import Tensor
from torch.nn.functional import interpolate

from verl_omni.samples import SampleRequests, ScoredSamples
from verl_omni.trainer.data.prompt_images import images_of
from verl_omni.trainer.generation.sample_generation import evaluation_seeds
from verl_omni.trainer.run.run_folder import PREVIEW, ShownSample, as_picture
from verl_omni.utils.messages import prompt_text
from verl_omni.utils.seeds import sample_seeds

PREVIEWS = 4  # training samples that are shown next to the evaluation's
EXTREMES = 4  # samples with the best scores of an evaluation that are saved, and as many with the worst


def training_samples(batch: SampleRequests, found: ScoredSamples, rollout: DictConfig) -> list[ShownSample]:
    """The samples of a training batch, in its order; empty without pictures."""
    if found.images is None:
        return []
    assert batch.seed is not None
    base = batch.seed
    texts = [prompt_text(messages) for messages in batch.prompts()]
    same_noise = rollout.algo.init_same_noise
    seeds = [sample_seeds(base, row, rollout.n, same_noise=same_noise) for row in range(len(texts))]
    rows = zip(texts, seeds, _shown_scores(found), found.images, found.versions, strict=True)
    return [
        ShownSample(
            text, row_seeds["seed"], score, image, sde_noise_seed=row_seeds.get("sde_noise_seed"), version=version
        )
        for text, row_seeds, score, image, version in rows
    ]


def evaluation_samples(rows: Sequence[Mapping[str, Any]], found: ScoredSamples, seed: int) -> list[ShownSample]:
    """The samples of an evaluation, in the order of its rows; empty for latents, which cannot be shown.

    Args:
        seed: see `sample_generation.evaluation_seeds`.
    """
    if found.images is None:
        return []
    seeds = evaluation_seeds(rows, seed)
    scores = _shown_scores(found)
    return [
        ShownSample(
            prompt_text(row["raw_prompt"]),
            seeds[index],
            scores[index],
            found.images[index],
            images_of(row["raw_prompt"]),
            version=found.versions[index],
        )
        for index, row in enumerate(rows)
    ]


def _shown_scores(found: ScoredSamples) -> list[float | None]:
    return [None if math.isnan(score) else score for score in found.scores.tolist()]


def choose(samples: Sequence[ShownSample], limit: int) -> list[ShownSample]:
    """The samples whose pictures are kept: at most `limit`, evenly spaced, no prompt twice."""
    first: dict[str, ShownSample] = {}
    for sample in samples:
        first.setdefault(sample.prompt, sample)
    distinct = list(first.values())
    count = min(len(first), limit)
    return [distinct[number * len(distinct) // count] for number in range(count)]


@dataclass(frozen=True, slots=True)
class TrainingPreview:
    """A training sample that is shown next to the evaluation's sample of the same prompt and initial noise."""

    row: Mapping[str, Any]
    """Row of the data set, with the seed of the sample in its column `seed`."""
    picture: Tensor
    """uint8 [C, H, W] or [T, C, H, W]."""
    score: float


def training_previews(batch: SampleRequests, found: ScoredSamples, rollout: DictConfig) -> list[TrainingPreview]:
    """The samples of a training batch whose pictures were kept."""
    assert batch.seed is not None
    previews = []
    for index, picture in found.pictures.items():
        seeds = sample_seeds(batch.seed, index, rollout.n, same_noise=rollout.algo.init_same_noise)
        row = {**batch.requests[index].row, "seed": seeds["seed"]}
        previews.append(TrainingPreview(row, picture, found.scores[index].item()))
    return previews


def join_pictures(preview: TrainingPreview, evaluated: ShownSample) -> ShownSample:
    """The evaluation's sample with the training image on its left, in the size of the evaluation's."""
    right = as_picture(evaluated.image)
    left = as_picture(preview.picture)
    if left.shape != right.shape:
        left = interpolate(left[None].float(), right.shape[1:], mode="area")[0].round().to(torch.uint8)
    score = None if math.isnan(preview.score) else preview.score
    return replace(evaluated, image=torch.cat([left, right], -1), inputs=(), kind=PREVIEW, training_score=score)


def extremes(samples: Sequence[ShownSample]) -> list[ShownSample]:
    """The samples with the highest and the lowest scores, best and worst first; none twice."""
    scored = sorted((sample for sample in samples if sample.score is not None), key=lambda sample: sample.score or 0.0)
    count = min(EXTREMES, len(scored) // 2)
    best = [replace(sample, kind="best") for sample in reversed(scored[len(scored) - count :])]
    return best + [replace(sample, kind="worst") for sample in scored[:count]]

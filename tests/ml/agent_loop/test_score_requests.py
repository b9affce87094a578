"""Samples that are ready at the same time go to a reward worker in one call."""

import asyncio
import pickle
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from verl_omni.agent_loop.score_requests import ScoreRequests, UnscoredSamples


class Workers:
    """A reward worker's handle that takes several samples in a call; scores by the first pixel, and not sample 3."""

    def __init__(self) -> None:
        self.calls: list[int] = []
        self.given: list[Any] = []
        self.score_samples = SimpleNamespace(remote=self._score)

    async def _score(self, samples: UnscoredSamples) -> list[Any]:
        rows = pickle.loads(pickle.dumps(samples)).rows()
        self.calls.append(len(rows))
        self.given += rows
        pixels = [int(row.batch["responses"].flatten()[0]) for row in rows]
        return [ValueError("sample 3") if pixel == 3 else {"reward_score": float(pixel)} for pixel in pixels]


async def scores(workers: list[Any], count: int, **settings: Any) -> list[Any]:
    requests = ScoreRequests(
        workers, **{"limit": 64, "deadline_seconds": 30.0, "reward": OmegaConf.create(), **settings}
    )
    asked = (
        requests.score(
            {"prompts": torch.ones(1, 8), "responses": torch.full((1, 3, 2, 2), number, dtype=torch.uint8)},
            {"uid": f"u{number}", "__num_turns__": 2, "boxes": [[1], [2]]},
            validate=False,
        )
        for number in range(count)
    )
    async with asyncio.timeout(30):
        results = await asyncio.gather(*asked, return_exceptions=True)
    assert not any(requests.sent.values()), "no sample is counted as unscored"
    return results


@pytest.mark.parametrize(
    ("samples", "workers", "calls"), [(128, 1, [[32] * 4]), (128, 2, [[32] * 2] * 2), (9, 4, [[3], [3], [3], []])]
)
async def test_a_call_has_the_share_of_a_worker_and_at_most_half_of_what_it_may_have(
    samples: int, workers: int, calls: list[list[int]]
) -> None:
    handles = [Workers() for _ in range(workers)]
    results = await scores(handles, samples)
    assert [handle.calls for handle in handles] == calls
    assert [result["reward_score"] for number, result in enumerate(results) if number != 3] == [
        float(number) for number in range(samples) if number != 3
    ]
    assert isinstance(results[3], ValueError), "the others have their scores"

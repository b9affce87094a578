"""Timesteps that the engine records in bfloat16: those that its transformer got."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from verl_omni.pipelines.trajectory_recorder import TrajectoryRecorder

pytestmark = [pytest.mark.slow, pytest.mark.timeout(400)]  # the engine's modules take half a minute to import

SIGMAS = torch.tensor([0.9973, 0.8377, 0.5113, 0.2719, 0.0])  # x 1000, bfloat16 has none of them
TIMESTEPS = SIGMAS[:-1] * 1000


class FirstRecords(TrajectoryRecorder):
    """A recorder that shows the timesteps of its first row."""

    @property
    def timesteps(self) -> list[float]:
        trajectory = self._records[0].trajectory
        assert trajectory is not None
        return trajectory.timesteps.tolist()  # type: ignore[no-any-return]


def test_sd3_records_the_timesteps_that_its_transformer_got() -> None:
    from verl_omni.pipelines.sd3.engine_pipeline import SD3RolloutPipeline

    got: list[float] = []

    class Pipeline(SD3RolloutPipeline):
        """The rollout's part of the pipeline, without a model."""

        def __init__(self) -> None:
            torch.nn.Module.__init__(self)
            self.device = torch.device("cpu")
            self.od_config = SimpleNamespace(dtype=torch.bfloat16)
            self.scheduler = SimpleNamespace(sigmas=SIGMAS)

        def predict_noise_maybe_with_cfg(self, guided: bool, scale: float, positive: Any, *others: Any) -> Tensor:
            got.append(positive["timestep"].item())
            return torch.zeros_like(positive["hidden_states"])

    params = SimpleNamespace(
        extra_args={"noise_level": 0.7, "logprobs": True}, num_inference_steps=4, generator=torch.Generator()
    )
    pipeline = Pipeline()
    recorder = pipeline._recorder = FirstRecords([params], pipeline.device, steps=4, dtype=torch.bfloat16)
    names = ("prompt_embeds", "pooled_prompt_embeds")
    embeddings = {f"{negative}{name}": None for negative in ("", "negative_") for name in names}
    pipeline.diffuse(torch.zeros(1, 2, 3, 3), TIMESTEPS, **embeddings, do_true_cfg=False, guidance_scale=1.0)
    assert len(got) == 4 and got != TIMESTEPS.tolist(), "the transformer gets them in bfloat16"
    assert recorder.timesteps == got[:3]

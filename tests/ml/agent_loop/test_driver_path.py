"""How a prompt gets from the data set to the agent loops: through few functions of the driver."""

import sys
from pathlib import Path
from types import CodeType, SimpleNamespace
from typing import Any

import pytest
from omegaconf import OmegaConf

from verl_omni.trainer.generation.sample_generator import SampleGenerator
from verl_omni.trainer.generation.training_batches import TrainingBatches

MOST_FUNCTIONS = 5
DRIVER = str(Path(__file__).parents[3] / "verl_omni" / "trainer")
MESSAGES = [{"role": "user", "content": "a red circle"}]


class Reached(Exception):
    """The prompt is where agent loops get it."""


def test_a_prompt_passes_at_most_five_functions_before_the_agent_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    """Counted: functions of the trainer that got or returned a prompt, or that run when it is handed over."""
    config: Any = OmegaConf.create(
        {
            "trainer": {"seed": 0, "rollout_data_dir": None},
            "reward": {"max_failed_share": 0.0},
            "actor_rollout_ref": {"rollout": {"n": 2, "seed": 0}},
        }
    )
    passed: set[CodeType] = set()
    monkeypatch.setattr("verl_omni.trainer.settings.scorer_devices.scores_late", lambda config: False)

    def generate_sequences(prompts: Any) -> None:
        assert prompts.non_tensor_batch["raw_prompt"][1] == MESSAGES
        frame = sys._getframe()
        while frame.f_back is not None:
            frame = frame.f_back
            if frame.f_code.co_filename.startswith(DRIVER):
                passed.add(frame.f_code)
        raise Reached

    stack = SimpleNamespace(pool=None, agent_loop=SimpleNamespace(generate_sequences=generate_sequences))
    generator = SampleGenerator(config, stack, None, None, lambda: None)  # type: ignore[arg-type]
    order: Any = SimpleNamespace(rows=lambda step: [0])
    batches = TrainingBatches(
        config,
        generator,
        [{"raw_prompt": MESSAGES, "data_source": "s"}],
        order,
        last=1,
        offline=False,
        update_parts=lambda step, rows: lambda samples: None,
    )

    def watch(frame: Any, event: str, value: Any) -> None:
        code = frame.f_code
        if event in ("call", "return") and code.co_filename.startswith(DRIVER) and not code.co_name.startswith("<"):
            handed = list(frame.f_locals.values()) if event == "call" else [value]
            if MESSAGES[0]["content"] in repr(handed):
                passed.add(code)

    sys.setprofile(watch)
    try:
        with pytest.raises(Reached):
            batches.generate(1, 0)
    finally:
        sys.setprofile(None)
    names = sorted(code.co_qualname for code in passed)
    assert "TrainingBatches.generate" in names and len(names) <= MOST_FUNCTIONS, names

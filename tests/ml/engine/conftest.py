"""What tests on the real engine share. Each file is a process of its own (`make test`), so that Ray can be forked."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Start Ray, workers and engines for settings; returns (settings, stack). They end with the module."""
    from verl_omni.trainer import settings, startup

    stacks: list[Any] = []

    def starting(prompts: list[str], *overrides: str) -> tuple[Any, Any]:
        folder: Path = tmp_path_factory.mktemp("engine")
        (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts))
        made = settings.load(
            [
                f"data.train_files='{folder / 'prompts.jsonl'}'", f"trainer.default_local_dir='{folder / 'run'}'",
                "trainer.total_training_steps=2", "reward.scorer=brightness", *overrides,
            ]
        )  # fmt: skip
        startup.prepare_environment(startup.accelerator_present())
        startup.fit_to_machine(made, startup.accelerator_present())
        stacks.append(startup.start(made, lambda text: None))
        return made, stacks[-1]

    yield starting
    for stack in stacks:
        stack.stop()


@pytest.fixture(scope="module")
def rows() -> Callable[[list[str]], list[dict[str, Any]]]:
    """Rows of a dataset for prompts, for the brightness reward."""

    def made(prompts: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "raw_prompt": [{"role": "user", "content": prompt}],
                "data_source": "brightness",
                "reward_model": {"ground_truth": prompt},
                "extra_info": {"prompt": prompt},
            }
            for prompt in prompts
        ]

    return made

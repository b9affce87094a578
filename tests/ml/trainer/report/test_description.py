"""The table that describes a run: model, algorithm, reward, learning rate, seeds, machine, version, duration."""

import json
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer.report.description import describe, describe_evaluations
from verl_omni.trainer.report.page import render
from verl_omni.trainer.report.run_data import Run, load


def test_the_table_of_a_run(run: Path) -> None:
    (run / "machine.json").write_text(
        json.dumps({"cpu": "Xeon", "cores": 16, "memory_gib": 128.0, "accelerators": {"NVIDIA H200": 2}})
    )
    (run / "versions.json").write_text(json.dumps({"omni-operator": "0.1.0", "commit": "abc123 with local changes"}))
    loaded = load(run)
    assert describe(loaded) == {
        "Model": "tiny-sd3 (StableDiffusion3Pipeline, LoRA of rank 16)",
        "Algorithm": "flow_grpo",
        "Reward": "color (color: red)",
        "Learning rate": "0.004, constant, 5 warm-up steps",
        "Samples per step": "32 (4 prompts, 8 samples each)",
        "Training samples": "10 steps, guidance 4.5, 32 × 64 pixels",
        "Evaluation samples": "40 steps, guidance 4.5, 32 × 64 pixels",
        "Seeds": "training 3, data 4, evaluation 42",
        "Machine": "16 cores of Xeon, 128 GiB memory, 2 × NVIDIA H200",
        "Version": "0.1.0, commit abc123 with local changes",
        "Duration": "14 s in steps, 1 min 30 s in evaluations",
        "Cost": "83 images, 0.05778 accelerator hours",
    }
    header = render(loaded).partition("</header>")[0]
    assert all(f"<dt>{label}</dt><dd>{value}</dd>" in header for label, value in describe(loaded).items())


@pytest.mark.parametrize(
    ("reward", "expected"),
    [
        ({"scorer": "jpeg", "scorer_kwargs": {}}, "jpeg"),
        (
            {"reward_functions": {"sharp": {"name": "jpeg", "weight": 0.25}, "red": {"name": "color"}}},
            "sharp (weight 0.25) + red (weight 1), weighted mean",
        ),
        ({"custom_reward_function": {"path": "/a/mine.py", "name": "compute_score"}}, "compute_score in mine.py"),
    ],
)
def test_rewards(reward: dict[str, Any], expected: str) -> None:
    assert describe(Run("r", settings={"reward": reward})) == {"Reward": expected}


@pytest.mark.parametrize(
    ("rollout", "actor", "description"),
    [
        (
            {"algo": {"noise_level": 0.7}, "val_kwargs": {"algo": {"noise_level": 0.0}}},
            {},
            "without the sampler's noise.",
        ),
        (
            {"algo": {"noise_level": 0.7}, "val_kwargs": {"algo": {}}},
            {},
            "the same noise of the sampler, of level 0.7.",
        ),
        ({"val_kwargs": {"algo": {"noise_level": 0.3}}}, {}, "and with the same noise of the sampler, of level 0.3."),
        ({}, {"ema_decay": 0.9}, "noise. It measures the moving average of the trained weights."),
        ({"rollout_adapter": "old"}, {}, "noise. It measures the old policy, which also samples for the training."),
    ],
)
def test_the_caption_of_evaluations_says_what_they_measure(
    rollout: dict[str, Any], actor: dict[str, Any], description: str
) -> None:
    text = describe_evaluations({"actor_rollout_ref": {"rollout": rollout, "actor": actor}})
    assert text.startswith("Every evaluation generates the same held-out prompts from the same initial noise, ")
    assert text.endswith(description)

"""A run whose algorithm, advantages, model family and reward are registered by a user's module, on the real engine."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from safetensors.torch import load_file

pytestmark = [pytest.mark.engine, pytest.mark.timeout(600)]

ROOT = Path(__file__).parents[3]
MODEL, ROLLOUT = "actor_rollout_ref.model", "actor_rollout_ref.rollout"
LOSS = "actor_rollout_ref.actor.diffusion_loss"


def test_a_run_uses_what_a_users_module_registers(tmp_path: Path) -> None:
    from verl_omni.models.tiny import MAKERS

    MAKERS["sd3"](tmp_path / "model")
    index = tmp_path / "model" / "model_index.json"
    index.write_text(json.dumps(json.loads(index.read_text()) | {"_class_name": "MyPipeline"}))
    shutil.copy(ROOT / "tests" / "ml" / "own_extension.py", tmp_path / "my_extension.py")
    arguments = [
        f"{MODEL}.external_lib=my_extension", f"{MODEL}.path={tmp_path / 'model'}", f"{MODEL}.lora_rank=4",
        f"{LOSS}.loss_mode=my_algorithm", f"{LOSS}.scale=3", "algorithm.adv_estimator=my_advantage",
        "reward.scorer=my_reward", "reward.scorer_kwargs.weight=-1",
        f"data.train_files={ROOT / 'examples' / 'prompts' / 'shapes_train.jsonl'}", "data.train_batch_size=2",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2", f"{ROLLOUT}.n=2", f"{ROLLOUT}.pipeline.height=64",
        f"{ROLLOUT}.pipeline.width=64", f"{ROLLOUT}.pipeline.num_inference_steps=3",
        "trainer.total_training_steps=2", f"trainer.default_local_dir={tmp_path / 'run'}",
    ]  # fmt: skip
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ended = subprocess.run(
        [sys.executable, "-m", "verl_omni.trainer.main_diffusion", *arguments], cwd=ROOT, capture_output=True,
        text=True, timeout=500, check=False, env={**os.environ, "PYTHONPATH": paths},
    )  # fmt: skip
    assert ended.returncode == 0, (ended.stdout + ended.stderr)[-6000:]
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    steps = [line for line in lines if "reward/mean" in line]
    assert [line["weights/version"] for line in steps] == [1, 2]
    assert all(-1 <= line["reward/mean"] < 0 for line in steps), "the user's scorer, and its setting"
    assert all("rollout_corr/mean_abs_diff" in line for line in steps), "the family in trainer and engine"
    (adapter,) = (tmp_path / "run" / "checkpoints").rglob("pytorch_lora_weights.safetensors")
    names = list(load_file(adapter))
    assert names and all(".attn.to_q." in name for name in names), "the family's own default of trained layers"

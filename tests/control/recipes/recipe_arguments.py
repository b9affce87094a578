"""Arguments that recipes share, and what their conversion leaves out."""

from __future__ import annotations

from omni_operator.recipes import convert

ROLLOUT, ACTOR, MODEL = "actor_rollout_ref.rollout", "actor_rollout_ref.actor", "actor_rollout_ref.model"
REQUIRED = (
    "data.train_files=train.parquet", "actor_rollout_ref.model.path=Qwen/Qwen-Image", f"{ROLLOUT}.n=16",
    "trainer.total_training_steps=300", "reward.custom_reward_function.path=score.py", "trainer.n_gpus_per_node=4",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
)  # fmt: skip


def refused(*arguments: str) -> dict[str, str]:
    return dict(convert([*REQUIRED, *arguments]).refused)

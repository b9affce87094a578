"""Arguments that recipes share, and what their conversion leaves out."""

from omni_operator.recipes import convert

ROLLOUT = "actor_rollout_ref.rollout"
ACTOR = "actor_rollout_ref.actor"
MODEL = "actor_rollout_ref.model"
REQUIRED = (
    "data.train_files=train.parquet",
    "actor_rollout_ref.model.path=Qwen/Qwen-Image",
    f"{ROLLOUT}.n=16",
    "trainer.total_training_steps=300",
    "reward.custom_reward_function.path=score.py",
    "trainer.n_gpus_per_node=4",
    f"{ROLLOUT}.tensor_model_parallel_size=1",
)


def refused(*arguments: str) -> dict[str, str]:
    return dict(convert([*REQUIRED, *arguments]).refused)

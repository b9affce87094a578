"""Settings of the smallest training on the engine; the settings that follow them in a list replace them."""

from pathlib import Path


def small_run(model: Path) -> list[str]:
    """An adapter of a model, and in each step two samples of two prompts, of 64 x 64 pixels in 4 steps."""
    pipeline = "actor_rollout_ref.rollout.pipeline"
    return [
        f"actor_rollout_ref.model.path='{model}'",
        "actor_rollout_ref.model.lora_rank=4",
        "actor_rollout_ref.actor.ppo_mini_batch_size=2",
        "actor_rollout_ref.rollout.n=2",
        "data.train_batch_size=2",
        "data.max_prompt_length=16",
        f"{pipeline}.max_sequence_length=16",
        f"{pipeline}.height=64",
        f"{pipeline}.width=64",
        f"{pipeline}.num_inference_steps=4",
        "reward.scorer=brightness",
    ]

"""Checks of a device with the rollout engine: generation, agreement with the trainer, a training step, weight sync.

Ray must not be imported before it is started (docs/adr/0007), so modules are imported where they are used.
"""

import json
import math
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Self

from verl_omni.trainer.device_checks.results import Check, require

PROMPTS = ("a red circle", "two blue squares on the left")
ROWS = [
    {
        "raw_prompt": [{"role": "user", "content": prompt}],
        "data_source": "brightness",
        "reward_model": {"ground_truth": prompt},
        "extra_info": {"prompt": prompt},
    }
    for prompt in PROMPTS
]
SAMPLES = 2  # per prompt
SEED = 7
PIPELINE = "actor_rollout_ref.rollout.pipeline"
SETTINGS = (
    "reward.scorer=brightness",
    "trainer.total_training_steps=2",
    f"data.train_batch_size={len(PROMPTS)}",
    "data.max_prompt_length=16",
    f"actor_rollout_ref.actor.ppo_mini_batch_size={len(PROMPTS)}",
    "actor_rollout_ref.actor.optim.lr=1e-2",
    "actor_rollout_ref.actor.fsdp_config.mixed_precision.param_dtype=bfloat16",
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.model.enable_gradient_checkpointing=true",
    "actor_rollout_ref.rollout.dtype=bfloat16",
    f"actor_rollout_ref.rollout.n={SAMPLES}",
    f"{PIPELINE}.height=64",
    f"{PIPELINE}.width=64",
    f"{PIPELINE}.num_inference_steps=4",
    f"{PIPELINE}.guidance_scale=3.0",
    f"{PIPELINE}.max_sequence_length=16",
)


class EngineChecks:
    """The checks, which share a stack and follow each other. Use as a context manager."""

    def __init__(self, device: str) -> None:
        self.device = device
        self._stack: Any = None
        self._version = 0

    def checks(self) -> dict[str, Check]:
        """The checks by name, in the order in which they must run."""
        return {
            "engine": self.start_and_generate,
            "training step": self.train,
            "weight sync": self.publish,
            "agreement after it": self.train,
        }

    @contextmanager
    def running(self) -> Iterator[Self]:
        """Stop the stack, if it was started, at the end of the block."""
        with tempfile.TemporaryDirectory() as folder:
            self._folder = Path(folder)
            try:
                yield self
            finally:
                if self._stack is not None:
                    self._stack.stop()

    def start_and_generate(self) -> str:
        """Ray, engine and trainer start, and the engine generates an image of each prompt with the first weights."""
        from verl_omni.models.tiny import MAKERS
        from verl_omni.pipelines.registry import lent_folder
        from verl_omni.trainer import startup
        from verl_omni.trainer.settings import configuration

        model = self._folder / "model"
        prompts = self._folder / "prompts.jsonl"
        MAKERS[lent_folder()](model)
        prompts.write_text("".join(json.dumps({"prompt": prompt}) + "\n" for prompt in PROMPTS))
        paths = (f"data.train_files='{prompts}'", f"trainer.default_local_dir='{self._folder / 'run'}'")
        self.config = configuration.load([f"actor_rollout_ref.model.path='{model}'", *paths, *SETTINGS])
        startup.fit_to_machine(self.config, self.device != "cpu")
        phases: list[str] = []
        self._stack = startup.start(self.config, phases.append)
        trained_on = f"1 x {self.device}"
        require(any(trained_on in phase for phase in phases), f"the policy is not trained on {trained_on}: {phases}")
        self._stack.weights.update_weights(global_steps=0)
        self._images = self._generate()
        spread = float(self._images.float().std())
        require(spread > 0, "all pixels of the generated images are equal")
        return f"{len(PROMPTS)} images, standard deviation of their pixels {spread:.0f} of 255"

    def train(self) -> str:
        """A step on new samples: engine and trainer agree about them, and the gradient is finite and not 0."""
        from verl.utils.config import omega_conf_to_dataclass

        from verl_omni.samples import TrainingBatch
        from verl_omni.trainer.generation import sample_generation, verl_batches
        from verl_omni.trainer.metrics import step_metrics
        from verl_omni.workers.algorithms.base import training_algorithm

        rollout = self.config.actor_rollout_ref.rollout
        step = self._version + 1
        batch = sample_generation.training_requests(ROWS, n=SAMPLES, step=step, version=self._version, seed=SEED)
        samples = sample_generation.generate_scored(self.config, self._stack.agent_loop, batch)
        step_metrics.check_versions(samples.versions, self._version)
        if rollout.free_cache_engine:
            self._stack.weights.sleep_replicas()
        loss = omega_conf_to_dataclass(self.config.actor_rollout_ref.actor.diffusion_loss)
        algorithm = training_algorithm(loss.loss_mode)
        rows = algorithm.training_batch(samples, loss, self.config, SEED)
        arguments = algorithm.update_arguments(self.config, step)
        request = verl_batches.update_to_verl(TrainingBatch(rows, samples.stored, arguments))
        metrics = step_metrics.over_ranks(self._stack.workers.update_actor(request).meta_info["metrics"])
        norm = metrics.get("actor/grad_norm", math.nan)
        require(math.isfinite(norm) and norm > 0, f"the norm of the gradient is {norm}")
        return (
            f"norm of the gradient {norm:.3g}; engine and trainer: velocities differ by "
            f"{metrics['rollout_corr/velocity_rel_diff']:.2%}, log-probabilities by "
            f"{metrics['rollout_corr/mean_abs_diff']:.2g}"
        )

    def publish(self) -> str:
        """The trained adapter reaches the engine, which then generates other images, with that version."""
        self._version += 1
        self._stack.weights.update_weights(global_steps=self._version)
        versions = self._stack.versions()
        require(versions == [self._version], f"the engine has versions {versions}, sent was {self._version}")
        changed = self._generate()
        share = float((changed != self._images).float().mean())
        require(share > 0, "the engine generates the same images with the trained weights as with the first ones")
        way = "shared memory" if self.device == "cpu" else "IPC of the device"
        return f"version {self._version} by {way}; {share:.0%} of the pixels changed"

    def _generate(self) -> Any:
        """An image of each prompt, with the same noise every time, uint8 [B, 3, H, W]."""
        from verl_omni.trainer.generation import sample_generation

        batch = sample_generation.evaluation_requests(ROWS, seed=SEED, version=self._version)
        samples = sample_generation.generate_scored(self.config, self._stack.agent_loop, batch)
        require(samples.images is not None, "the engine returned no images")
        return samples.images

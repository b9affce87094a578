"""PURE: into how many parts a step's prompts are divided, so that one is trained on while the next is generated."""

from collections.abc import Iterator
from dataclasses import dataclass

from omegaconf import DictConfig

from verl_omni.trainer.settings import scorer_devices
from verl_omni.trainer.settings.reward_settings import NORMALIZED
from verl_omni.workers.actor import precision
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.registered import ALGORITHMS

# The update of the last part is not hidden, and small batches of the engine take longer per sample. Measured on two
# cores with examples/colors-grpo.yaml: a step with two parts takes 1.15 times as long as with four, with eight 1.03.
MOST_PARTS = 4


@dataclass(frozen=True, slots=True)
class StepParts:
    """How a step's samples are divided."""

    sizes: list[int]
    """Number of samples of each part, always of whole prompts; a single part: generation, then update."""
    reason: str
    """Why there is one part; empty if there are more."""


def divide(config: DictConfig, *, device: str, cores: int, threads: int, pads_prompts: bool) -> StepParts:
    """The parts of a step.

    The optimizer step, its gradients and the samples are the same for any division: it only changes what waits.

    Args:
        device: torch's type of the trainer's device.
        cores: logical cores of the machine.
        threads: of the engine and of the trainer while both compute, each.
        pads_prompts: whether the embeddings of all prompts have one length, as the model family says.
    """
    prompts = config.data.train_batch_size
    samples = config.actor_rollout_ref.rollout.n
    obstacles = _obstacles(config, device=device, compete=cores < 2 * threads, pads_prompts=pads_prompts)
    if (reason := next(obstacles, None)) is not None:
        return StepParts([prompts * samples], reason)
    parts = min(MOST_PARTS, prompts)
    return StepParts([samples * (prompts // parts + (part < prompts % parts)) for part in range(parts)], "")


def advantages_are_scaled(config: DictConfig) -> bool:
    """Whether advantages are divided by the standard deviation of the batch, which its last part changes."""
    return bool(config.algorithm.norm_adv_by_std_in_grpo and config.algorithm.global_std)


def _obstacles(config: DictConfig, *, device: str, compete: bool, pads_prompts: bool) -> Iterator[str]:
    """Why generation and update cannot overlap within a step."""
    rollout = config.actor_rollout_ref.rollout
    if config.algorithm.sample_source != "online":
        yield "no samples are generated"
    if rollout.nnodes > 0:
        yield "engines on accelerators of their own generate whole batches ahead"
    if device != "cpu" or rollout.free_cache_engine is not False:  # null: not fitted to a machine yet
        yield "the engines sleep during the update, or share an accelerator with it"
    if compete:
        yield "engine and trainer slow each other down on so few cores"
    if scorer_devices.scores_late(config):
        yield "a batch is scored when all of it is generated"
    if config.reward.aggregation == NORMALIZED:
        yield "the scores of a scorer are normalized when all are there"
    if config.data.train_batch_size == 1:
        yield "a step has one prompt"
    yield from _obstacles_of_update(config, pads_prompts=pads_prompts)


def _obstacles_of_update(config: DictConfig, *, pads_prompts: bool) -> Iterator[str]:
    actor = config.actor_rollout_ref.actor
    loss = ALGORITHMS[actor.diffusion_loss.loss_mode]
    correction = config.algorithm.rollout_correction
    if config.trainer.nnodes * config.trainer.n_gpus_per_node != 1:
        yield "several ranks share each mini-batch"
    if actor.ppo_mini_batch_size < config.data.train_batch_size or actor.ppo_epochs != 1:
        yield "after an optimizer step, a failure would leave a step that is not complete"
    if actor.shuffle:
        yield "the rows of a batch are shuffled"
    micro = actor.ppo_micro_batch_size_per_gpu
    if micro is not None and micro >= config.data.train_batch_size * config.actor_rollout_ref.rollout.n:
        yield "a step is one micro-batch"
    if precision.resolve(actor.fsdp_config, lora=config.actor_rollout_ref.model.lora_rank > 0).mixed:
        yield "in mixed precision, gradients are reduced after the last micro-batch"
    if not pads_prompts:
        yield "embeddings are padded to the longest prompt of the batch"
    if loss.row != "sample" or not loss.on_recorded_steps or config.algorithm.timestep_fraction != 1:
        yield "the algorithm draws pairs, noise or steps for the whole batch"
    if correction.rollout_rs is not None or correction.rollout_is == "sequence":
        yield "all samples are compared with the policy before the update"
    if config.algorithm.adv_estimator in ESTIMATORS.registered:
        yield "the estimator of advantages may need the whole batch"
    if advantages_are_scaled(config) and (actor.use_kl_loss or loss.loss is not None):
        yield "the loss is not proportional to the batch's standard deviation"

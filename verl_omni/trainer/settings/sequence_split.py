"""Check, before anything starts, that ranks can share the sequence of a sample (sequence parallelism)."""

from pathlib import Path

from omegaconf import DictConfig

from verl_omni.utils.model_folder import processor_config
from verl_omni.workers.actor.setting_checks import (
    COMPILED,
    SEQUENCE_PARALLEL,
    check_heads,
    check_prompt_rows,
    check_tokens,
    sequence_groups,
)


def check(config: DictConfig) -> None:
    """Refuse settings whose sequence of latents the ranks of a group cannot share evenly.

    Args:
        config: settings of the trainer, with the model's folder and architecture filled in.

    Raises:
        ValueError: the size does not divide the ranks, the attention heads, the tokens of a sample or of a prompt, the
            model's family has no split, or its layers are to be compiled.
        FileNotFoundError: a configuration file of the model is missing.
    """
    settings = config.actor_rollout_ref
    size = settings.actor.fsdp_config.ulysses_sequence_parallel_size
    sequence_groups(config.trainer.nnodes * config.trainer.n_gpus_per_node, size)
    if size == 1:
        return
    if settings.actor.fsdp_config.use_torch_compile:
        raise ValueError(
            f"{COMPILED}: true is not supported with {SEQUENCE_PARALLEL}={size}: the exchange between the ranks is not "
            "compiled; write false"
        )
    # Imported here: only runs that split sequences need it at this point.
    from verl_omni.pipelines.registry import FAMILIES
    from verl_omni.pipelines.sample_shapes import read_configs, sample_shapes

    architecture = settings.model.architecture
    shapes = sample_shapes(architecture)
    if not shapes.SPLITS_SEQUENCE:
        others = " and ".join(name for name in sorted(FAMILIES) if sample_shapes(name).SPLITS_SEQUENCE)
        raise ValueError(
            f"{SEQUENCE_PARALLEL}: {size} is not supported for {architecture}, whose model family has no split of "
            f"the sequence, only for {others}; write 1"
        )
    configs = read_configs(Path(settings.model.path))
    if (processor := processor_config(Path(settings.model.path))) is not None:
        configs["processor"] = processor
    check_heads(size, configs["transformer"]["num_attention_heads"])
    check_tokens(size, shapes.sequence_length(configs, settings.rollout.pipeline))
    if getattr(shapes, "SPLITS_PROMPT", False):
        check_prompt_rows(size, settings.rollout.pipeline.max_sequence_length)

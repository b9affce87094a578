"""Every section of the composed settings that names its type with `_target_` makes an object of that type."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from hydra.utils import get_class
from omegaconf import DictConfig, OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from tests.ml import smallest_job
from verl_omni.trainer import startup
from verl_omni.workers.algorithms.registered import ALGORITHMS

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = f"{ACTOR}.diffusion_loss"
FSDP = f"{ACTOR}.fsdp_config"
# The same for each algorithm. A section that is added to the settings is added here.
SECTIONS = [
    "actor_rollout_ref.model",
    ACTOR,
    f"{ACTOR}.optim",
    FSDP,
    f"{FSDP}.mixed_precision",
    f"{ACTOR}.checkpoint",
    LOSS,
    ROLLOUT,
    f"{ROLLOUT}.pipeline",
    f"{ROLLOUT}.algo",
    f"{ROLLOUT}.val_kwargs",
    f"{ROLLOUT}.agent",
    f"{ROLLOUT}.checkpoint_engine",
    f"{ROLLOUT}.prometheus",
    "reward.reward_model.rollout",
]


@cache
def composed(loss: str) -> DictConfig:
    return smallest_job.load(
        f"actor_rollout_ref.model.path='{MODEL}'", "actor_rollout_ref.model.lora_rank=4", f"{LOSS}.loss_mode={loss}"
    )


def typed(node: DictConfig, path: str = "") -> Iterator[str]:
    """Names of the sections with a `_target_`."""
    if "_target_" in node:
        yield path
    for key in node:
        if isinstance(inner := node._get_node(key), DictConfig) and not inner._is_none():
            yield from typed(inner, f"{path}.{key}" if path else str(key))


@pytest.mark.parametrize("loss", ALGORITHMS)
def test_a_section_makes_the_type_that_it_names_once_the_machine_is_known(loss: str) -> None:
    config = composed(loss).copy()
    startup.fit_to_machine(config, has_accelerator=False)
    assert list(typed(config)) == SECTIONS
    for name in SECTIONS:
        section = OmegaConf.select(config, name)
        assert type(omega_conf_to_dataclass(section)) is get_class(section._target_), name

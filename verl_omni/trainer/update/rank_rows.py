"""PURE: in which order the rows of an update go to the ranks, so that mini-batches do not depend on their number."""

import torch
from omegaconf import DictConfig, OmegaConf
from torch import Tensor

from verl_omni.workers.actor.setting_checks import SEQUENCE_PARALLEL, sequence_groups


def order_of_run(config: DictConfig, rows: int, rows_per_prompt: int) -> Tensor:
    """`order` for the ranks and mini-batches of a run; ranks that share sequences get the same rows.

    Args:
        rows_per_prompt: rows that the samples of a prompt make.
    """
    ranks = config.trainer.nnodes * config.trainer.n_gpus_per_node
    mini_batch = config.actor_rollout_ref.actor.ppo_mini_batch_size * rows_per_prompt
    return order(rows, mini_batch, sequence_groups(ranks, OmegaConf.select(config, SEQUENCE_PARALLEL)))


def order(rows: int, mini_batch: int, groups: int) -> Tensor:
    """Rows in the order in which `groups` ranks get equal shares of them, one share after the other, int64 [rows].

    A rank splits its share into mini-batches of `mini_batch / groups` rows. The i-th mini-batches of
    all ranks together are the i-th mini-batch of a run with one process: whole prompts, the same for any rank count.

    Args:
        rows, mini_batch: multiples of `groups`. The last mini-batch may be shorter.
    """
    parts = [chosen.chunk(groups) for chosen in torch.arange(rows).split(mini_batch)]
    return torch.cat([part[group] for group in range(groups) for part in parts])

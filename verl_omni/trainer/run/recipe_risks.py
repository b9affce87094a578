"""Warnings about the recipe of a run, as `drl validate` prints them."""

from __future__ import annotations

from omegaconf import DictConfig, OmegaConf

from verl_omni.workers.algorithms import recipe_lint


def describe_risks(config: DictConfig) -> str:
    """What published runs report as harmful, each with its setting; empty if there is nothing."""
    risks = recipe_lint.find_risks(lambda name: OmegaConf.select(config, name))
    return "; ".join(f"{risk.setting} {risk.text}" for risk in risks)

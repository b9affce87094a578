"""Warnings about what a run learns, from its metrics: a constant reward, collapsed samples, a diverging policy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from verl_omni.trainer import collapse, constant_reward, policy_drift
from verl_omni.trainer.run_folder import RunFolder


@dataclass
class RunWarnings:
    """Gives each warning once, as an event of the run folder."""

    folder: RunFolder
    _collapse: collapse.CollapseState = field(default_factory=collapse.CollapseState, init=False)
    _drift: policy_drift.DriftState = field(default_factory=policy_drift.DriftState, init=False)
    _reward: constant_reward.ConstantRewardState = field(
        default_factory=constant_reward.ConstantRewardState, init=False
    )

    @property
    def collapsed(self) -> bool:
        """Whether the samples count as collapsed."""
        return self._collapse.collapsed

    def observe(self, step: int, metrics: Mapping[str, float | None]) -> None:
        """Take the metrics of a step, of which each number counts once."""
        self._collapse, collapsed = collapse.observe(self._collapse, metrics)
        self._drift, diverged = policy_drift.observe(self._drift, metrics)
        self._reward, constant = constant_reward.observe(self._reward, metrics)
        if constant is not None:
            self.folder.event("warning", reason=constant_reward.REASON, message=constant, step=step)
        if collapsed is not None:
            self.folder.event("warning", reason=collapse.REASON, message=collapsed, step=step)
        for message in diverged:
            self.folder.event("warning", reason=policy_drift.REASON, message=message, step=step)

    def restore(self) -> None:
        """Replay the metrics of the steps before the checkpoint; their warnings have been given."""
        for line in self.folder.metrics():
            self._collapse, _ = collapse.observe(self._collapse, line)
            self._drift, _ = policy_drift.observe(self._drift, line)
            self._reward, _ = constant_reward.observe(self._reward, line)

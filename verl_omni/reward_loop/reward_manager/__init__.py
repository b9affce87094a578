"""Reward managers, which verl's reward-loop workers load by name."""

from .multi import MultiVisualRewardManager
from .visual import VisualRewardManager

__all__ = ["MultiVisualRewardManager", "VisualRewardManager"]

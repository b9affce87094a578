"""Pools of scorers: processes that run one scorer alone, and the reward workers' connection to them.

The trainer starts the processes (`trainer/rewards/scorer_processes.py`). A reward worker scores a sample with all
scorers; those with a pool it asks through a `PooledScorer`.
"""

from .pooled_scorer import PooledScorer, PooledScorerError, PoolLost, find_processes, process_name
from .scorer_process import ScorerProcess

__all__ = ["PoolLost", "PooledScorer", "PooledScorerError", "ScorerProcess", "find_processes", "process_name"]

"""Re-export: programs written for verl-omni look for the weight sender's registration at this path."""

from verl_omni.verl_names import SERVER_ADAPTER

__all__ = ["SERVER_ADAPTER"]

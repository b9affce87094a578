"""Reinforcement learning of diffusion models on verl and vLLM-Omni."""

from verl_omni.reference_names import explain_missing_names
from verl_omni.verl_names import register_names

register_names()
explain_missing_names()

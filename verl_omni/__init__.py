"""Reinforcement learning of diffusion models on verl and vLLM-Omni."""

from verl_omni.verl_names import register_names

register_names()

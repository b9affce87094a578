"""Reinforcement learning of diffusion models on verl and vLLM-Omni."""

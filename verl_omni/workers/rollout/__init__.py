"""Rollout replicas: registration with verl, clients, and servers on vLLM-Omni."""

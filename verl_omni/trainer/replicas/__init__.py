"""Standalone rollout replicas: launch, calls, weight updates, replacement of lost ones."""

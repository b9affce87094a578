"""Prometheus metrics of trainer and rollout replicas, and names of training metrics."""

"""Reward workers and judges of a run."""

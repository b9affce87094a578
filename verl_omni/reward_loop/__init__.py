"""Reward managers and scorers, run by verl's reward-loop workers."""

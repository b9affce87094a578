"""Reward managers and scorers, which run in verl's reward-loop workers."""

"""Runs in the engine's worker processes: the receiving end of a weight update, and sleep on Ascend NPUs."""

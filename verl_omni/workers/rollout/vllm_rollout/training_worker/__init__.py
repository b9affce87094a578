"""Runs in the process of the trained model: the sending end of a weight update."""

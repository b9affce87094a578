"""Runs in the process of the trained model, or in the worker of a standalone replica: the sending end of an update."""

"""Runs in the driver and in agent-loop workers: replica handles and the client that sends requests to replicas."""

"""The rollout side: the engine's server, replica and sample type."""

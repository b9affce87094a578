"""Settings of a run: Hydra overrides to a checked configuration, before anything starts."""

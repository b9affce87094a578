"""Pure: a job to the trainer's overrides and the objects it needs."""

"""PURE: overrides of trainer settings: names, types and ranges that the trainer accepts, and names that fields set."""

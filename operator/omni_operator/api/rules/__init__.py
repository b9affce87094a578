"""PURE: rules that no single section can state: accelerators, and overrides of trainer settings."""

"""The operator and the `drl` command."""

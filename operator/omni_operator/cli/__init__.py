"""The `drl` command."""

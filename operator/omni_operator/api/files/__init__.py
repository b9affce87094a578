"""YAML files to checked documents: every problem with its file, line and the nearest valid name."""

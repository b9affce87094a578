"""Default settings of the trainer."""

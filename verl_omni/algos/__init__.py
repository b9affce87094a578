"""PURE: tensor mathematics of sampling and training: SDE steps, advantages, losses."""

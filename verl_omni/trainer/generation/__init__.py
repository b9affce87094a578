"""A batch of scored samples, now or ahead of the update that trains on it."""

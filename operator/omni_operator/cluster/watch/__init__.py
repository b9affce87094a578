"""Watches of one kind of object: a list, then its changes without a gap, and their liveness."""

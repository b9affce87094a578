"""Metrics of steps and evaluations, and warnings that follow from them."""

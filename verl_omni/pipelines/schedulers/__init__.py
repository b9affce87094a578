"""Samplers with known transition densities."""

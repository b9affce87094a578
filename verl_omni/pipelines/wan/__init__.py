"""Wan, text to video."""

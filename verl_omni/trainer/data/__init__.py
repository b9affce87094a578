"""Prompts and preference pairs: files to checked rows, in an order that depends only on the seed."""

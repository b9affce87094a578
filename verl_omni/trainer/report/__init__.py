"""Report of a run: a run folder becomes one HTML file that needs no network."""

from .page import write

__all__ = ["write"]

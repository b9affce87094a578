"""Run folder -> one self-contained page."""

from .write import write

__all__ = ["write"]

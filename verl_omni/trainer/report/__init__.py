"""Run folder -> one self-contained page: load (parse at the door), words and plots (pure), write."""

from .write import write

__all__ = ["write"]

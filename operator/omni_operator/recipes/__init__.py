"""PURE: shell scripts that start the reference's trainer, converted to jobs."""

from .conversion import Conversion, convert
from .shell_script import RecipeError, TrainerCall, read_script

__all__ = ["Conversion", "RecipeError", "TrainerCall", "convert", "read_script"]

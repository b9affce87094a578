"""PURE: shell scripts that start the reference's trainer, converted to jobs."""

from .conversion import Conversion, convert
from .script_calls import OtherScript, RecipeError
from .trainer_call import TrainerCall, read_script

__all__ = ["Conversion", "OtherScript", "RecipeError", "TrainerCall", "convert", "read_script"]

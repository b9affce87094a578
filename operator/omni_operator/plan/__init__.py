"""Pure: a job to the trainer's overrides and the objects it needs."""

from .overrides import command, overrides, settings
from .place import Place, one_machine, rooted

__all__ = ["Place", "command", "one_machine", "overrides", "rooted", "settings"]

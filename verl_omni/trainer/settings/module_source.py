"""The source file of a module that settings name, found without running it: it may load a model when it is imported."""

import importlib.util
from pathlib import Path


class SourceNotFound(ValueError):
    """There is no such file or module; the message names it."""


def find_source(path: str) -> Path | None:
    """The file of a module; None for a module that is not written in Python.

    Args:
        path: path of a file, which may begin with `file://`, or `pkg://package.module`, as in verl.

    Raises:
        SourceNotFound: there is no such file or module, or the file is not Python.
    """
    if path.startswith("pkg://"):
        module = path.removeprefix("pkg://").replace("/", ".")  # verl takes both
        try:
            spec = importlib.util.find_spec(module)
        except (ImportError, ValueError) as error:
            raise SourceNotFound(f"no module {module}: {error}") from error
        if spec is None:
            raise SourceNotFound(f"no module {module}; install it, or write the path of its file")
        if not (path := spec.origin or "").endswith(".py"):
            return None
    file = Path(path.removeprefix("file://"))
    if not file.is_file():
        raise SourceNotFound(f"no file {file}")
    if file.suffix != ".py":
        raise SourceNotFound(f"{file} is not a Python file (.py)")
    return file

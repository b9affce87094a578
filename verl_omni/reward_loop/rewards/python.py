"""Scorer in a user's function, from a file or an installed module."""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import sys
import threading
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

_PACKAGE = "pkg://"
_LOADED: dict[str, Any] = {}
_LOADING = threading.Lock()


def compute_score(
    data_source: str, solution_image: Tensor, ground_truth: Any, extra_info: Any, function: str, **settings: Any
) -> Any:
    """The result of your function, `path/to/file.py:name` or `package.module:name`, called with the same arguments.

    Args:
        settings: further arguments of the function.

    Raises:
        ValueError: `function` does not name a plain (not async) function that can be imported.
    """
    scorer = load(function)
    return scorer(
        data_source=data_source,
        solution_image=solution_image,
        ground_truth=ground_truth,
        extra_info=extra_info,
        **settings,
    )


def load(function: str) -> Any:
    """Load `function`; a file is executed once per process, although scorers run in several threads.

    Raises:
        ValueError: the file, module or plain function does not exist, or the module exits. Other errors inside the
            module are not translated.
    """
    with _LOADING:
        if function not in _LOADED:
            _LOADED[function] = _find(function)
        return _LOADED[function]


def package_of(path: str, name: str) -> str:
    """Load a user's module, and return its path as verl's loader takes it without running it again.

    verl's loader runs a file without making it a module, so that dataclasses in it fail, and hides the error of a file
    that fails.

    Args:
        path: path of a file, or `pkg://` and the name of a module. name: function in it.

    Raises:
        ValueError: as `load`; other errors inside the module are not translated.
    """
    if path.startswith(_PACKAGE):
        return path
    with _LOADING:
        module, _ = _module_with(path.removeprefix("file://"), name)
    return f"{_PACKAGE}{module.__name__}"


def _find(function: str) -> Any:
    where, _, name = function.rpartition(":")
    if not (where and name.isidentifier()):
        raise ValueError(f"function {function!r}: write 'path/to/file.py:name' or 'package.module:name'")
    _, loaded = _module_with(where, name)
    if inspect.iscoroutinefunction(loaded):
        raise ValueError(f"{function} is async: set it as reward.custom_reward_function instead")
    return loaded


def _module_with(where: str, name: str) -> tuple[ModuleType, Any]:
    try:
        module = _from_file(Path(where)) if where.endswith(".py") else _from_name(where)
    except SystemExit as error:  # it would end the reward worker
        raise ValueError(
            f"{where} calls sys.exit({error.code!r}) when it is imported: put what it does as a program below "
            "`if __name__ == '__main__':`"
        ) from error
    function = getattr(module, name, None)
    if not callable(function):
        raise ValueError(f"{where} has no function {name!r}")
    return module, function


def _from_file(path: Path) -> ModuleType:
    path = path.resolve()
    if not path.is_file():
        raise ValueError(f"no file {path}")
    # Its name has the whole path, so that two files with the same name do not replace each other.
    name = f"verl_omni_user_scorer_{str(path).encode().hex()}"
    if name in sys.modules:  # another function of the file has been loaded
        return sys.modules[name]
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ValueError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module  # dataclasses and pickle look a class's module up there
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _from_name(name: str) -> ModuleType:
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        # Only the module itself; a module that it imports and that is missing is an error inside it.
        if error.name is not None and (name == error.name or name.startswith(f"{error.name}.")):
            raise ValueError(f"no module {name!r}: {error}") from error
        raise

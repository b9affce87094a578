"""The class of the data set (`data.custom_cls`), and its files: checked before anything starts, without running it."""

import ast
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.reward_loop.scorer_signature import may_define, nearest_name
from verl_omni.trainer.data import prompt_files
from verl_omni.trainer.settings.module_source import SourceNotFound, find_source
from verl_omni.trainer.settings.reference_modules import DATASET

SETTING = "data.custom_cls"


class DatasetClassNotUsable(ValueError):
    """The class of the data set does not exist, its module fails, or it is no data set."""


def check(data: DictConfig) -> None:
    """Refuse a class that its module does not define.

    Raises:
        DatasetClassNotUsable: the message names the setting.
    """
    path, name = (OmegaConf.select(data, f"custom_cls.{key}") for key in ("path", "name"))
    if path is None or (path, name) == (DATASET["path"], DATASET["name"]):
        return
    for key, value, text in (("path", path, "the path of a Python file"), ("name", name, "the name of a class in it")):
        if not isinstance(value, str) or not value:
            shown = "null" if value is None else repr(value)
            raise DatasetClassNotUsable(f"{SETTING}.{key}: {shown} is not supported; write {text}")
    try:
        file = find_source(path)
    except SourceNotFound as error:
        raise DatasetClassNotUsable(
            f"{SETTING}.path: {error}; write the path of a Python file, or pkg://package.module"
        ) from error
    if file is None:
        return
    try:
        text = file.read_text(encoding="utf-8")
        defined = [node.name for node in ast.parse(text).body if isinstance(node, ast.ClassDef)]
    except (OSError, SyntaxError, ValueError) as error:
        raise DatasetClassNotUsable(f"{SETTING}.path: {file} cannot be read as Python: {error}") from error
    if name not in defined and not may_define(text, name):
        raise DatasetClassNotUsable(f"{SETTING}.name: {file} has no class {name}{nearest_name(name, defined)}")


def check_with_files(config: DictConfig) -> None:
    """Check class and prompts of a run. What is in files of another class is its own.

    Args:
        config: settings of the trainer.

    Raises:
        FileNotFoundError: a file does not exist.
        DatasetClassNotUsable: the dataset class does not exist.
        InvalidPromptFile: a file cannot be read, has no rows, or a row without a usable prompt.
    """
    data = config.data
    check(data)
    offline = config.algorithm.sample_source == "offline"
    is_own = OmegaConf.select(data, "custom_cls.path") == DATASET["path"]  # an override may have removed it
    for files, held_out in ((data.train_files, False), (data.val_files, True)):
        for file in map(Path, [files] if isinstance(files, str) else files or ()):
            if is_own:
                prompt_files.check_file(file, data.prompt_key, held_out=held_out, pairs=offline and not held_out)
            else:
                prompt_files.check_exists(file)


def load(settings: DictConfig) -> Any:
    """Import the class.

    Args:
        settings: the group `data`.

    Raises:
        DatasetClassNotUsable: the message names the setting; the cause is the error of the module.
    """
    from verl.utils.dataset.rl_dataset import get_dataset_class

    try:
        return get_dataset_class(settings)
    except Exception as error:  # a module of the user's may raise anything
        custom = settings.custom_cls
        cause = error.__cause__ or error
        raise DatasetClassNotUsable(
            f"{SETTING}: {custom.name} of {custom.path} cannot be used: {type(cause).__name__}: {cause}; correct the "
            "module, or write another class"
        ) from error

"""A class of the user's for the data set is refused before anything starts if it cannot be one."""

import re
from pathlib import Path

import pytest
from omegaconf import DictConfig

from tests.ml import smallest_job
from verl_omni.trainer.data import dataset_class
from verl_omni.trainer.data.dataset_class import SETTING, DatasetClassNotUsable

OWN = "import json\n\n\nclass OwnPrompts:\n    pass\n\n\nOther = json.loads\n"


def data(*overrides: str) -> DictConfig:
    config: DictConfig = smallest_job.load(*overrides).data
    return config


@pytest.fixture
def own(tmp_path: Path) -> Path:
    file = tmp_path / "own.py"
    file.write_text(OWN)
    return file


@pytest.mark.parametrize(
    ("path", "name", "message"),
    [
        ("{own}", "OwnPrompt", "name: {own} has no class OwnPrompt; did you mean OwnPrompts?"),
        ("file://{own}", "Wholly", "name: {own} has no class Wholly; one of OwnPrompts"),
        ("{own}", "null", "name: null is not supported; write the name of a class in it"),
        ("{own}", "5", "name: 5 is not supported; write the name of a class in it"),
        ("5", "Own", "path: 5 is not supported; write the path of a Python file"),
        ("''", "Own", "path: '' is not supported; write the path of a Python file"),
        ("/no/such.py", "Own", "path: no file /no/such.py; write the path of a Python file, or pkg://package.module"),
        ("{folder}", "Own", "path: no file {folder}; write the path of a Python file, or pkg://package.module"),
        ("{folder}/own.txt", "Own", "path: {folder}/own.txt is not a Python file (.py); write the path of a Python"),
        ("{folder}/broken.py", "Own", "path: {folder}/broken.py cannot be read as Python: '(' was never closed"),
        ("pkg://no_such_module_of_prompts", "Own", "path: no module no_such_module_of_prompts; install it, or write"),
        (
            "pkg://verl_omni.trainer.data.prompt_dataset",
            "Dataset",
            "name: .*trainer/data/prompt_dataset.py has no class Dataset; did you mean Dif",
        ),
    ],
)
def test_what_cannot_be_a_class_is_named_with_what_to_write(own: Path, path: str, name: str, message: str) -> None:
    (own.parent / "own.txt").write_text(OWN)
    (own.parent / "broken.py").write_text("class Own(\n")
    places = {"own": str(own), "folder": str(own.parent)}
    where = path.format(**places)
    data_config = data(f"{SETTING}.path={where}", f"{SETTING}.name={name}")
    with pytest.raises(DatasetClassNotUsable) as refused:
        dataset_class.check(data_config)
    wanted = message.format(**places)
    assert str(refused.value).startswith(f"{SETTING}.{wanted}") or re.match(rf"{SETTING}\.{wanted}", str(refused.value))
    assert "\n" not in str(refused.value)


def test_a_class_that_its_file_defines_or_may_make_is_accepted(own: Path) -> None:
    for name in ("OwnPrompts", "Other"):
        dataset_class.check(data(f"{SETTING}.path={own}", f"{SETTING}.name={name}"))
    dataset_class.check(data())
    dataset_class.check(data(f"{SETTING}.path=pkg://verl_omni/trainer/data/prompt_dataset"))
    dataset_class.check(data(f"{SETTING}.path=null"))  # verl's class


def test_the_files_of_a_run_are_checked_with_its_class(own: Path) -> None:
    config = smallest_job.load(f"data.train_files={own}", f"{SETTING}.path={own}", f"{SETTING}.name=Wrong")
    with pytest.raises(DatasetClassNotUsable, match="has no class Wrong; one of OwnPrompts"):
        dataset_class.check_with_files(config)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("Own = 5\n", "TypeError: "),
        ("class Own: ...\n", "TypeError: The custom dataset class 'Own' from"),
        ("# Own\n", "AttributeError: Object not found in module"),
        ("class Own: ...\nraise OSError('no network')\n", "OSError: no network; correct the module"),
    ],
)
def test_a_class_whose_module_fails_is_named_when_it_is_imported(own: Path, text: str, message: str) -> None:
    own.write_text(text)
    data_config = data(f"{SETTING}.path={own}", f"{SETTING}.name=Own")
    dataset_class.check(data_config)
    with pytest.raises(DatasetClassNotUsable) as refused:
        dataset_class.load(data_config)
    assert str(refused.value).startswith(f"{SETTING}: Own of {own} cannot be used: {message}")
    assert str(refused.value).endswith("; correct the module, or write another class")

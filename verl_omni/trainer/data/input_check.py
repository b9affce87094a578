"""The trainer's first check of a job's model, adapter and prompts, for `drl validate`.

`file_problems` imports no ML library. `model_problems` loads tokenizers, and runs as a separate program:

    python3 -m verl_omni.trainer.data.input_check REQUEST

The request is a JSON object with the fields of `Inputs`. The answer, on standard output, is a JSON list of problems.
"""

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from verl_omni.trainer.data import prompt_files
from verl_omni.utils import model_layout


@dataclass(frozen=True, slots=True)
class Inputs:
    """Paths that exist on this machine; what is null or left out is not checked.

    Attributes:
        model: folder with `model_index.json`.
        extended: whether a module of the user's may register the model's family.
        adapter: settings of `actor_rollout_ref.model` about an adapter to continue from.
        train, validation: files of prompts, by their place in the job. prompt_key: their column.
        pairs: whether training reads pairs of images.
        settings: the trainer's command line, to check what the engine would refuse of the prompts.
    """

    model: str | None = None
    extended: bool = False
    adapter: dict[str, Any] | None = None
    train: dict[str, str] = field(default_factory=dict)
    validation: dict[str, str] = field(default_factory=dict)
    prompt_key: str = "prompt"
    pairs: bool = False
    settings: list[str] = field(default_factory=list)


def file_problems(inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Problems of the model's folder and of files of prompts: the input, such as `model` or `train/0`, and the text."""
    if inputs.model is not None:
        problems = _folder_problems(Path(inputs.model), extended=inputs.extended)
        yield from (("model", text) for text in problems)
    for name, files, pairs in (("train", inputs.train, inputs.pairs), ("validation", inputs.validation, False)):
        for position, path in files.items():
            try:
                prompt_files.check_file(Path(path), inputs.prompt_key, held_out=name == "validation", pairs=pairs)
            except (OSError, ValueError) as error:
                yield f"{name}/{position}", str(error)


def needs_model(inputs: Inputs) -> bool:
    """Whether `model_problems` has anything to check. The files must be without problems."""
    if inputs.model is None or inputs.extended:
        return False
    return inputs.adapter is not None or (bool(inputs.settings) and _checks_prompts(Path(inputs.model)))


def model_problems(inputs: Inputs) -> Iterator[tuple[str, str]]:
    """Problems of the adapter, and the first prompt that the engine would refuse."""
    if not needs_model(inputs):
        return
    model = Path(str(inputs.model))
    problems = [] if inputs.adapter is None else list(_adapter_problems(model, inputs.adapter))
    yield from (("adapter", text) for text in problems)
    if not problems and inputs.settings and _checks_prompts(model):
        yield from _refused_prompts(model, inputs)


def _checks_prompts(model: Path) -> bool:
    from verl_omni.pipelines.registry import FAMILIES

    family = FAMILIES.get(_architecture(model))
    return family is not None and family.checks_prompts


def _refused_prompts(model: Path, inputs: Inputs) -> Iterator[tuple[str, str]]:
    """The first prompt that the engine would refuse, for families whose engine refuses any."""
    from verl_omni.pipelines.registry import training_adapter

    if not hasattr(training_adapter(_architecture(model)), "prompt_check"):
        return
    from verl_omni.trainer.data import prompt_dataset
    from verl_omni.trainer.settings import configuration, model_settings

    try:
        config = configuration.load(inputs.settings)
        model_settings.fill_in(config.actor_rollout_ref.model, config.actor_rollout_ref.rollout)
        prompt_dataset.load_checked(config)
    except (OSError, ValueError) as error:
        files = {
            f"{name}/{entry}": path for name in ("train", "validation") for entry, path in getattr(inputs, name).items()
        }
        yield next((entry for entry, path in files.items() if path in str(error)), "model"), str(error)


def _architecture(model: Path) -> Any:
    return json.loads((model / "model_index.json").read_text(encoding="utf-8")).get("_class_name")


def _folder_problems(folder: Path, *, extended: bool) -> list[str]:
    try:
        return list(model_layout.find_problems(folder, extended=extended))
    except (OSError, ValueError) as error:
        return [str(error)]


def _adapter_problems(base: Path, given: dict[str, Any]) -> Iterator[str]:
    from omegaconf import OmegaConf

    from verl_omni.pipelines.registry import training_adapter
    from verl_omni.trainer.settings import model_settings

    try:
        not_adapted = getattr(training_adapter(_architecture(base)), "NOT_ADAPTED", None)
        model_settings.continue_from_adapter(OmegaConf.create({"exclude_modules": None, **given}), base, not_adapted)
    except (OSError, ValueError) as error:
        yield str(error)


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the problems of `model_problems`. Returns the exit code, 0."""
    (request,) = sys.argv[1:] if arguments is None else arguments
    sys.stdout.write(f"{json.dumps(list(model_problems(Inputs(**json.loads(request)))))}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Without a reward function, every row must name its scorer; pairs of a data set are trained on without one."""

import json
from pathlib import Path
from typing import Any

import pytest

from verl_omni.trainer import main_diffusion
from verl_omni.trainer.data import prompt_files
from verl_omni.trainer.settings import configuration

GOOD = {"prompt": "red", "data_source": "jpeg"}
OFFLINE = (
    "actor_rollout_ref.model.lora_rank=4",
    "actor_rollout_ref.actor.diffusion_loss.loss_mode=dpo",
    "algorithm.sample_source=offline",
)
AGENT = "actor_rollout_ref.rollout.agent"
FUNCTION = "reward.custom_reward_function.path"
ADVICE = f"write {FUNCTION}, or reward.scorer for a built-in one"


def checked(folder: Path, held_out: dict[str, Any], *more: str, train: dict[str, Any] = GOOD) -> tuple[Any, Any]:
    """The settings after the check, and what it names, for one row of each file."""
    for name, row in (("train", train), ("test", held_out)):
        (folder / f"{name}.jsonl").write_text(json.dumps(row))
    files = [f"data.train_files={folder}/train.jsonl", f"data.val_files={folder}/test.jsonl"]
    config = configuration.load(["actor_rollout_ref.model.path=m", "trainer.total_training_steps=1", *files, *more])
    config.actor_rollout_ref.model.architecture = "StableDiffusion3Pipeline"
    return config, main_diffusion._check_files(config)


@pytest.mark.parametrize(
    ("row", "overrides"),
    [
        (GOOD, []),
        ({"prompt": "red"}, ["reward.scorer=jpeg"]),
        ({"prompt": "red"}, [f"{FUNCTION}=pkg://verl_omni.utils.reward_score.jpeg_compressibility"]),
        ({"prompt": "red", "agent_name": "mine"}, []),
        ({"prompt": "red"}, [f"{AGENT}.default_agent_loop=mine", f"{AGENT}.agent_loop_config_path=loops.yaml"]),
    ],
    ids=["named", "built-in", "of the reference", "own loop of the row", "own loop"],
)
def test_rows_with_a_scorer_are_accepted(tmp_path: Path, row: dict[str, Any], overrides: list[str]) -> None:
    config, unused = checked(tmp_path, row, *overrides, train=row)
    assert unused == {} and config.data.val_files


@pytest.mark.parametrize("file", ["train", "test"])
@pytest.mark.parametrize(
    ("row", "message"),
    [
        ({"prompt": "red"}, "it has no column data_source"),
        ({"prompt": "red", "data_source": "prose"}, "scorer: prose"),
    ],
)
def test_a_row_without_a_scorer_is_refused_before_anything_starts(
    tmp_path: Path, row: dict[str, Any], message: str, file: str
) -> None:
    with pytest.raises(prompt_files.InvalidPromptFile) as refused:
        checked(tmp_path, row if file == "test" else GOOD, train=row if file == "train" else GOOD)
    text = str(refused.value)
    assert text.startswith(f"{tmp_path}/{file}.jsonl:1: ") and message in text and text.endswith(ADVICE)


def test_held_out_rows_are_not_evaluated_where_pairs_are_trained_on_without_a_scorer(tmp_path: Path) -> None:
    """Its recipes give no reward function; the run failed in its first evaluation."""
    pair = {"prompt": "red", "chosen": __file__, "rejected": pytest.__file__}
    config, unused = checked(tmp_path, {"prompt": "red", "data_source": "prose"}, *OFFLINE, train=pair)
    assert config.data.val_files is None
    assert list(unused) == ["data.val_files"] and "names no scorer: prose" in unused["data.val_files"]
    config, unused = checked(tmp_path, GOOD, *OFFLINE, train=pair)
    assert config.data.val_files and unused == {}

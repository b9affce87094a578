"""Values of another type than their setting's are refused with what to write, whatever would have read them first."""

from __future__ import annotations

import pytest

from tests.ml.smallest_job import load, refusal
from verl_omni.settings_schema.declarations import may_be_null
from verl_omni.settings_schema.layout import layout
from verl_omni.settings_schema.setting import Kind
from verl_omni.workers.algorithms.registry import DEFAULT

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
FILES = "a path, or a list of paths such as [first.jsonl,second.jsonl]"
EMPTY = "has no value, such as from an empty variable of a script"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ("trainer.n_gpus_per_node=", f"{EMPTY}; write a number"),
        (f"{MODEL}.path=", f"{EMPTY}; write a path"),
        ("trainer.n_gpus_per_node='4'", "the text '4' is not supported; write a number"),
        (f"{ACTOR}.ppo_mini_batch_size=null", "null is not supported; write a number"),
        ("trainer.total_training_steps=many", "the text 'many' is not supported; write a number"),
        ("trainer.val_before_train=no", "the text 'no' is not supported; write true or false"),
        (f"{ROLLOUT}.algo.sde_window_range=5", "5 is not supported; write two numbers, such as [0,5]"),
        (f"{MODEL}.lora_rank=true", "true is not supported; write a number"),
        ("data.train_files=5", f"5 is not supported; write {FILES}"),
        ("data.train_files=[null]", f"[null] is not supported; write {FILES}"),
        ("data.val_files=[null]", f"[null] is not supported; write {FILES}"),
    ],
)
def test_a_value_of_another_type_is_refused_with_what_to_write(given: str, said: str) -> None:
    assert refusal(given) == f"{given.partition('=')[0]}: {said}"


def test_a_setting_of_a_group_that_is_given_as_a_whole_is_checked() -> None:
    message = refusal(f"{ROLLOUT}.algo={{noise_level: much, sde_type: sde}}")
    assert message == f"{ROLLOUT}.algo.noise_level: the text 'much' is not supported; write a number"


@pytest.mark.parametrize("value", ["", "text", None])
def test_no_number_or_switch_stops_with_another_error(value: str | None) -> None:
    """Every setting whose values are checked; those that may be null load."""
    known = layout(DEFAULT)
    assert len(known.kinds) > 120
    for name, kind in known.kinds.items():
        if value is None and may_be_null(name):
            continue
        if (kind in (Kind.PATH, Kind.PATHS) and value == "text") or (name == "data.val_files" and value != "text"):
            continue
        problem = known.wrong_type(name, value)
        assert problem is not None and "; write " in problem


@pytest.mark.parametrize(
    "given",
    [
        "trainer.val_before_train=0",
        "trainer.total_epochs=15.0",
        "data.seed=null",
        f"{ROLLOUT}.seed=${{data.seed}}",
        f"{ROLLOUT}.algo.sde_window_size=null",
        f"{ROLLOUT}.algo.sde_window_range=null",
        f"{ACTOR}.optim.lr=1.e-4",
        f"{ACTOR}.optim.lr=${{actor_rollout_ref.actor.optim.eps}}",
        f"{ACTOR}.optim.lr=1",
        "data.val_max_samples=-1",
        "trainer.experiment_name=2024",
        "trainer.max_actor_ckpt_to_keep=null",
        "data.train_files=[a.jsonl,b.parquet]",
        "data.val_files=v.jsonl",
        "data.val_files=[]",
        "data.val_files=",
    ],
)
def test_usual_values_are_accepted(given: str) -> None:
    load(given)

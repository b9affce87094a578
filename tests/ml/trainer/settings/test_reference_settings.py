"""Settings of the reference: each is used, accepted without effect, or refused with a reason; nothing is ignored."""

import pytest
from omegaconf import OmegaConf

from tests.ml import smallest_job
from tests.ml.smallest_job import refusal
from tools import settings_page
from verl_omni.settings_schema.reference_settings import Copied, Rejected, Renamed, WithoutEffect, find_rule, rules
from verl_omni.trainer.settings import configuration

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
LOSS = f"{ACTOR}.diffusion_loss.loss_mode"
SAMPLED_FOR = "actor_rollout_ref.model.algorithm"


def of_kind(kind: type) -> list[str]:
    """Names of settings with a rule of one kind; of a group, one name in it."""
    return [name.replace(".*", ".anything") for name, rule in rules().items() if isinstance(rule, kind)]


def test_every_setting_of_the_reference_is_known() -> None:
    rows = settings_page.rows()
    assert len(rows) == 486
    assert {row.kind for row in rows} <= set(settings_page.KINDS)


def test_no_setting_has_a_rule_and_a_default() -> None:
    configs = settings_page.configurations()
    names = [name.removesuffix(".*") for name in rules() if name != "actor_rollout_ref.ref.*"]
    doubled = [
        name
        for name in names
        if any(OmegaConf.select(config, name, default="absent") != "absent" for config in configs)
    ]
    assert doubled == []


def test_targets_of_renamed_and_copied_settings_exist() -> None:
    (config, *_) = settings_page.configurations()
    targets = [rule.name for rule in rules().values() if isinstance(rule, Renamed | Copied)]
    assert [name for name in targets if OmegaConf.select(config, name, default="absent") == "absent"] == []


def test_settings_without_effect_change_nothing_and_are_named_with_their_reasons() -> None:
    overrides = [f"+{name}=3" for name in of_kind(WithoutEffect)]
    reasons = configuration.without_effect([*overrides, "data.shuffle=false"])
    assert list(reasons) == of_kind(WithoutEffect) and all(reasons.values())
    assert smallest_job.load(*overrides) == smallest_job.load()


def test_a_refused_setting_says_which_value_is_accepted_and_what_to_write() -> None:
    names = of_kind(Rejected)
    for name, line in zip(names, refusal(*(f"{name}=surprising" for name in names)).splitlines(), strict=True):
        rule = find_rule(name)
        assert isinstance(rule, Rejected)
        assert line.startswith(f"{name}: surprising is not supported; write ")
        assert line.endswith(rule.advice)


@pytest.mark.parametrize("place", [0, -1])
def test_a_value_that_asks_for_nothing_is_accepted_and_changes_nothing(place: int) -> None:
    values = {name: rule.accepted[place] for name in of_kind(Rejected) if isinstance(rule := find_rule(name), Rejected)}
    overrides = [f"++{name}={'null' if value is None else value}" for name, value in values.items()]
    assert smallest_job.load(*overrides) == smallest_job.load()


def test_dpo_is_another_name_of_diffusion_dpo() -> None:
    adapter = [*smallest_job.REQUIRED, "actor_rollout_ref.model.lora_rank=4"]
    reference = configuration.load([*adapter, f"{LOSS}=dpo", f"{SAMPLED_FOR}=dpo"])
    assert reference == configuration.load([*adapter, f"{LOSS}=diffusion_dpo", f"{SAMPLED_FOR}=diffusion_dpo"])
    assert smallest_job.load("trainer.project_name=dpo").trainer.project_name == "dpo"


DANCE = (f"{ROLLOUT}.algo.sde_type=dance_sde", "algorithm.adv_estimator=dance_grpo")
MIX = (f"{ROLLOUT}.algo.sde_window_seed=0", "algorithm.adv_estimator=mix_grpo")


@pytest.mark.parametrize("setting", [LOSS, SAMPLED_FOR])
@pytest.mark.parametrize(("name", "meaning"), [("dance_grpo", DANCE), ("mix_grpo", MIX)])
def test_an_algorithm_that_is_flow_grpo_with_other_settings_has_a_name(
    setting: str, name: str, meaning: tuple[str, ...]
) -> None:
    window = f"{ROLLOUT}.algo.sde_window_size=2"
    named = smallest_job.load(window, f"{setting}={name}")
    assert named == smallest_job.load(window, *meaning)
    assert named != smallest_job.load(window)
    assert named.actor_rollout_ref.actor.diffusion_loss.loss_mode == named.actor_rollout_ref.model.algorithm


def test_the_users_own_settings_come_after_those_that_a_name_stands_for() -> None:
    overrides = [f"{ROLLOUT}.algo.sde_type=sde", f"{LOSS}=dance_grpo"]
    assert smallest_job.load(*overrides).actor_rollout_ref.rollout.algo.sde_type == "sde"


def test_names_of_two_algorithms_are_refused_in_any_order() -> None:
    overrides = [f"{LOSS}=dance_grpo", f"{SAMPLED_FOR}=mix_grpo", f"{ROLLOUT}.algo.sde_window_size=2"]
    message = f"{LOSS}=dance_grpo and {SAMPLED_FOR}=mix_grpo: these are different algorithms; name one of them"
    assert refusal(*overrides) == refusal(*reversed(overrides)) == message
    message = (
        f"{LOSS}=mix_grpo and algorithm.adv_estimator=dance_grpo: these are different algorithms; name one of them"
    )
    assert refusal(DANCE[1], f"{LOSS}=mix_grpo", overrides[2]) == message


def test_without_loss_mode_the_algorithm_is_that_of_the_samples() -> None:
    """The reference's default of `loss_mode` is `model.algorithm`."""
    actor_settings = smallest_job.load(f"{SAMPLED_FOR}=flow_dppo").actor_rollout_ref
    assert actor_settings.actor.diffusion_loss.loss_mode == "flow_dppo"


def test_mix_grpo_draws_one_window_a_step_unless_it_is_told_to_move_it() -> None:
    """The reference's default of `sample_strategy` is `random`, and windows of any steps are random ones."""
    overrides = [*smallest_job.REQUIRED, f"{SAMPLED_FOR}=mix_grpo", f"{ROLLOUT}.algo.sde_window_size=2"]
    drawn = configuration.load([*overrides, f"{ROLLOUT}.algo.sde_contiguous=False"]).actor_rollout_ref.rollout.algo
    assert (drawn.sample_strategy, drawn.sde_window_seed, drawn.sde_contiguous) == ("random", 0, False)
    moved = configuration.load(
        [*overrides, f"{ROLLOUT}.algo.sample_strategy=progressive"]
    ).actor_rollout_ref.rollout.algo
    assert moved.sample_strategy == "progressive"


def test_mix_grpo_needs_a_window_that_fits() -> None:
    name = f"{LOSS}=mix_grpo"
    size = f"{ROLLOUT}.algo.sde_window_size"
    assert refusal(name) == f"{size}: mix_grpo trains on a window of the steps; write how many it has"
    assert refusal("algorithm.adv_estimator=mix_grpo") == refusal(name)
    assert refusal(f"{size}=6") == f"{size}: an SDE window of 6 steps does not fit into [0, 5) of 10 steps"
    smallest_job.load(f"{size}=5")
    smallest_job.load(f"{size}=6", f"{ROLLOUT}.algo.sde_window_range=[2,8]")


def test_an_unknown_estimator_of_advantages_is_refused() -> None:
    assert refusal("algorithm.adv_estimator=gae").startswith(
        "algorithm.adv_estimator: gae is not supported; write flow_grpo or dance_grpo or mix_grpo: "
    )


def test_a_copy_must_have_the_value_of_the_original() -> None:
    copy = "actor_rollout_ref.model.pipeline.guidance_scale"
    smallest_job.load(f"{copy}=4.0", f"{ROLLOUT}.pipeline.guidance_scale=4.0")
    assert refusal(f"{copy}=4.0", f"{ROLLOUT}.pipeline.guidance_scale=1.0") == (
        f"{copy}: 4.0 differs from {ROLLOUT}.pipeline.guidance_scale, which is 1.0; write the value there only"
    )


def test_a_copy_alone_sets_the_original() -> None:
    alone = smallest_job.load("actor_rollout_ref.model.pipeline.guidance_scale=4.0")
    assert alone == smallest_job.load(f"{ROLLOUT}.pipeline.guidance_scale=4.0")
    assert "actor_rollout_ref.ref.rollout_n: 4 differs from" in refusal(
        "actor_rollout_ref.ref.rollout_n=4", f"{ACTOR}.rollout_n=8"
    )


CORRECTION = "algorithm.rollout_correction"
COPIES = f"{ACTOR}.rollout_correction"


@pytest.mark.parametrize(
    "settings",
    [
        ["bypass_mode=true"],
        ["rollout_is=token"],
        ["rollout_is=sequence", "rollout_is_threshold=3.0"],
        ["rollout_rs=seq_mean_k1", "rollout_rs_threshold=0.5_2.0"],
    ],
    ids=" ".join,
)
def test_the_actors_rollout_correction_is_that_of_the_algorithm(settings: list[str]) -> None:
    copies = smallest_job.load(*(f"{COPIES}.{setting}" for setting in settings))
    assert copies == smallest_job.load(*(f"{CORRECTION}.{setting}" for setting in settings))
    assert copies != smallest_job.load()


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("loss_type=reinforce", f"{CORRECTION}.loss_type: reinforce is not supported; write ppo_clip"),
        ("rollout_is_batch_normalize=true", f"{CORRECTION}.rollout_is_batch_normalize: true is not supported; write"),
        ("rollout_is=geometric", f"{CORRECTION}.rollout_is: geometric is not supported; write null or token or seq"),
        ("rollout_is_threshold=3", f"{CORRECTION}.rollout_is_threshold: 3 is not read without {CORRECTION}.rollout_is"),
        ("rollout_rs_threshold=2", f"{CORRECTION}.rollout_rs_threshold: 2 is not read without {CORRECTION}.rollout_rs"),
        ("rollout_rs=all", f"{CORRECTION}.rollout_rs: "),
        ("level=token", f"{COPIES}.level: unknown setting; write {CORRECTION}"),
    ],
)
def test_a_value_of_the_actors_rollout_correction_without_a_meaning_is_refused(setting: str, message: str) -> None:
    assert refusal(f"{COPIES}.{setting}").startswith(message)


@pytest.mark.parametrize("value", ["={rollout_is: token}", "=null"])
def test_a_whole_group_of_copies_is_refused_with_the_group_to_write(value: str) -> None:
    assert refusal(f"{COPIES}{value}") == f"{COPIES}: unknown setting; write {CORRECTION}"
    assert refusal(f"~{COPIES}") == f"{COPIES}: unknown setting; write {CORRECTION}"
    pipeline = "actor_rollout_ref.model.pipeline"
    assert refusal(f"{pipeline}={{height: 8}}") == f"{pipeline}: unknown setting; write {ROLLOUT}.pipeline"


def test_a_whole_group_can_be_given() -> None:
    group = f"{ACTOR}.profiler={{enable: true, tool: nsys}}"
    assert list(configuration.without_effect([group])) == [f"{ACTOR}.profiler"]
    smallest_job.load(group)


def test_a_misspelt_setting_is_still_refused() -> None:
    assert "unknown setting; did you mean trainer.total_epochs?" in refusal("trainer.total_epoch=3")
    steps = f"{ROLLOUT}.val_kwargs.pipeline.num_inference_steps"
    assert f"did you mean {steps}?" in refusal(f"{ROLLOUT}.val_kwargs.num_inference_steps=50")
    assert refusal("trainer.balance_batch=false") == "trainer.balance_batch: unknown setting"  # nothing is similar

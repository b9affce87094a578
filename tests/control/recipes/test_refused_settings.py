"""Settings of a recipe that a job cannot have: each is named once, with the reason."""

import pytest

from control.recipes.recipe_arguments import ACTOR, MODEL, REQUIRED, ROLLOUT, refused
from omni_operator.recipes import Conversion, convert


def test_what_is_not_supported_is_named_and_what_has_no_effect_too() -> None:
    sglang = "reward.reward_model.rollout.name=sglang"
    converted = convert([*REQUIRED, f"{ROLLOUT}.layered_summon=True", sglang, "trainer.nonsense=1"])
    assert converted.without_effect == (f"{ROLLOUT}.layered_summon=True",)
    assert [argument for argument, _ in converted.refused] == [sglang, "trainer.nonsense=1"]
    assert converted.refused[0][1] == "sglang is not supported; write vllm"


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        (f"{ACTOR}.diffusion_loss.loss_mode=ppo", "ppo is not supported; algorithms are awm, "),
        ("algorithm.adv_estimator=gae", "gae is not supported; write flow_grpo or dance_grpo or mix_grpo"),
        (f"{ROLLOUT}.name=sglang", "sglang is not supported; write vllm_omni"),
        ("trainer.resume_from_path=/x/step_000060", "a job starts from checkpoints in its run folder"),
        ("trainer.resume_mode=resume_path", "resume_path is not supported; write auto or enable or disable"),
        (f"{ROLLOUT}.algo.sde_window_range=5", "5 is not a range [first, end]"),
        ("data.train_batch_size=$N", "$N is not a number"),
        (f'{MODEL}.custom_chat_template="no tags\nof a template"', "a job's override is one line"),
        ("nonsense", "is not an assignment name=value"),
        ("~data.seed", "a setting cannot be deleted; write its value"),
    ],
)
def test_a_value_without_a_place_is_named_with_the_reason(argument: str, message: str) -> None:
    adapter = "actor_rollout_ref.model.lora_rank=8"
    assert any(reason.startswith(message) for reason in refused(adapter, argument).values())


LOSS_MODE = f"{ACTOR}.diffusion_loss.loss_mode"
SAMPLED_FOR = f"{MODEL}.algorithm"
ESTIMATOR = "algorithm.adv_estimator"


@pytest.mark.parametrize(
    ("names", "at_fault", "message"),
    [
        ((f"{ESTIMATOR}=dance_grpo", f"{LOSS_MODE}=mix_grpo"), 0, f"contradicts {LOSS_MODE}=mix_grpo: "),
        ((f"{LOSS_MODE}=dance_grpo", f"{ESTIMATOR}=mix_grpo"), 1, f"contradicts {LOSS_MODE}=dance_grpo: "),
        ((f"{SAMPLED_FOR}=mix_grpo", f"{LOSS_MODE}=dance_grpo"), 0, f"contradicts {LOSS_MODE}=dance_grpo: "),
        ((f"{ESTIMATOR}=mix_grpo", f"{SAMPLED_FOR}=dance_grpo"), 0, f"contradicts {SAMPLED_FOR}=dance_grpo: "),
        ((f"{LOSS_MODE}=dpo", f"{ESTIMATOR}=dance_grpo"), 1, "dance_grpo does not go with diffusion_dpo: it orders "),
    ],
)
def test_names_of_different_algorithms_are_one_error_in_any_order(
    names: tuple[str, ...], at_fault: int, message: str
) -> None:
    for order in (names, names[::-1]):
        ((argument, reason),) = convert([*REQUIRED, *order]).refused
        assert argument == names[at_fault] and reason.startswith(message)
    assert refused(f"{LOSS_MODE}=mix_grpo", f"{SAMPLED_FOR}=mix_grpo", f"{ESTIMATOR}=mix_grpo") == {}


def test_names_that_are_not_registered_are_left_out_unless_a_module_of_the_users_may_have_them() -> None:
    names = (f"{MODEL}.architecture=MiniMaxH3Pipeline", f"{ROLLOUT}.agent.default_agent_loop=mine")
    for modules in ((), (f"{MODEL}.external_lib=verl_omni.pipelines.sd3_dpo",)):
        assert list(refused(*names, *modules)) == list(names)
    assert refused(*names, f"{MODEL}.external_lib=my_family") == {}
    known = (f"{MODEL}.architecture=WanPipeline", f"{ROLLOUT}.agent.default_agent_loop=diffusion_single_turn_agent")
    assert refused(*known) == {}


@pytest.mark.parametrize("path", ["ByteDance-Seed/BAGEL-7B-MoT", "$HOME/models/MiniMax-H3", "Lightricks/LTX-2"])
def test_a_model_of_a_family_that_does_not_exist_here_is_named(path: str) -> None:
    model_path = f"{MODEL}.path={path}"
    reasons = refused(model_path)
    assert list(reasons) == [model_path] and reasons[model_path].startswith("the model family ")
    assert refused(model_path, f"{MODEL}.external_lib=my_family") == {}
    assert refused(f"{MODEL}.path=/models/my-LTX/sd3") == {}


@pytest.mark.parametrize("algorithm", ["diffusion_nft", "dpo"])
def test_a_kl_loss_is_left_out_where_an_algorithm_has_none(algorithm: str) -> None:
    loss = f"{ACTOR}.diffusion_loss.loss_mode={algorithm}"
    kl = f"{ACTOR}.use_kl_loss=True"
    converted = convert([*REQUIRED, loss, kl])
    assert kl in converted.without_effect and converted.refused == ()
    assert kl not in convert([*REQUIRED, kl]).without_effect


def test_epochs_of_prompts_that_are_dropped_are_left_out() -> None:
    converted = convert([*REQUIRED, "trainer.total_epochs=15", "data.filter_overlong_prompts=True"])
    ((argument, reason),) = converted.refused
    assert argument == "trainer.total_epochs=15" and reason.endswith("is known only after the start")
    assert "data.filter_overlong_prompts=True" in converted.document["spec"]["algorithm"]["overrides"]
    assert convert([*REQUIRED, "trainer.total_epochs=15"]).refused == ()


def test_a_mode_that_is_not_supported_is_the_one_that_is_named() -> None:
    mode = "trainer.v1.trainer_mode=colocate_async"
    assert refused("trainer.use_v1=true", mode)[mode].startswith("colocate_async is not supported; write sync, or ")
    number = "reward.num_workers=$(( N ? 2 : 1 ))"
    assert refused(number)[number] == "$(( N ? 2 : 1 )) is not a number"


def test_a_value_that_the_algorithm_cannot_use_is_named() -> None:
    bypass = "algorithm.rollout_correction.bypass_mode=True"
    reasons = refused(f"{ACTOR}.diffusion_loss.loss_mode=flow_dppo", bypass)
    assert reasons[bypass].startswith("true does not go with flow_dppo: the engine does not record the means")
    assert bypass not in refused(bypass)


JUDGE = tuple(f"reward.reward_model.{text}" for text in ("enable=True", "model_path=m", "enable_resource_pool=True"))


@pytest.mark.parametrize(
    ("argument", "more"),
    [
        ("trainer.n_gpus_per_node=$(nproc)", ()),
        ("trainer.nnodes=$N", ()),
        ("trainer.log_val_generations=$N", ()),
        (f"{ROLLOUT}.tensor_model_parallel_size=$N", ()),
        (f"{ACTOR}.ppo_mini_batch_size=$N", ()),
        (f"{ROLLOUT}.pipeline.num_inference_steps=$N", (f"{ROLLOUT}.algo.sde_window_size=2",)),
        ("actor_rollout_ref.model.lora_alpha=$N", ("actor_rollout_ref.model.lora_rank=8",)),
        ("reward.reward_model.nnodes=$N", JUDGE),
    ],
)
def test_a_number_that_is_not_known_is_named_once_and_no_other_setting(argument: str, more: tuple[str, ...]) -> None:
    reason = f"{argument.partition('=')[2]} is not a number"
    assert convert([*REQUIRED, *more, argument]).refused == ((argument, reason),)


def test_what_follows_from_other_settings_stays_in_the_job() -> None:
    """A recipe often counts the machine's accelerators, and the rest of it does not depend on them."""
    converted = convert(
        [
            *REQUIRED,
            "data.train_batch_size=32",
            f"{ACTOR}.ppo_mini_batch_size=16",
            "trainer.device=npu",
            "trainer.n_gpus_per_node=$(nproc)",
            "trainer.logger=[console]",
            "trainer.log_val_generations=8",
            f"{MODEL}.lora_rank=8",
            f"{MODEL}.lora_alpha=$ALPHA",
            f"{MODEL}.target_modules=[to_q]",
            f"{ROLLOUT}.algo.sde_window_size=2",
            f"{ROLLOUT}.algo.sde_window_range=[0,5]",
            f"{ROLLOUT}.pipeline.num_inference_steps=$STEPS",
        ]
    )
    assert {argument.partition("=")[2] for argument, _ in converted.refused} == {"$(nproc)", "$ALPHA", "$STEPS"}
    spec = converted.document["spec"]
    assert spec["trainer"]["batch"] == {"prompts": 32, "miniBatchPrompts": 16}
    assert spec["trainer"]["accelerator"] == {"vendor": "Ascend"}
    assert "images" not in spec["observability"]["tracking"]
    assert spec["model"]["lora"] == {"rank": 8, "targetModules": ["to_q"]}
    assert spec["rollout"]["sampler"]["window"] == {"size": 2, "start": 0, "end": 5}


@pytest.mark.parametrize(
    ("argument", "message"),
    [
        ("trainer.device=$DEVICE", "$DEVICE is not supported; write cuda or npu"),
        ("trainer.use_v1=$V1", "$V1 is not supported; write true or false"),
        ("reward.reward_model.enable=$JUDGE", "$JUDGE is not supported; write true or false"),
    ],
)
def test_a_setting_that_decides_about_others_is_not_guessed(argument: str, message: str) -> None:
    converted = convert([*REQUIRED, argument])
    assert converted.refused == ((argument, message),)
    assert converted.document == convert(REQUIRED).document


def test_a_script_without_a_reward_or_a_length_says_what_to_write() -> None:
    converted: Conversion = convert(["actor_rollout_ref.model.path=m"])
    assert {reason for _, reason in converted.refused} == {
        "is not in the script; write spec.trainer.totalSteps",
        "the script names no reward function; write spec.reward.scorers",
    }

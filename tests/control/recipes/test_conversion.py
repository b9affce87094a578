"""Settings of a recipe to a job: every value is in a field, in the overrides, or named as left out."""

import csv
from pathlib import Path
from typing import Any

import pytest

from control.recipes.recipe_arguments import ACTOR, REQUIRED, ROLLOUT, refused
from omni_operator import plan
from omni_operator.api import load_job, read_job
from omni_operator.recipes import Conversion, convert
from omni_operator.recipes.fields import CONVERSIONS, IMPLIED, REFERENCE_DEFAULTS, SCORERS, TOGETHER
from verl_omni.settings_schema.reference_settings import target_of

ROOT = Path(__file__).parents[3]
EXAMPLES = sorted(path for path in (ROOT / "examples").glob("*.yaml"))
ADAPTER = "actor_rollout_ref.model.lora_rank=8"
ALGO = f"{ROLLOUT}.algo"
PAIRS = (ADAPTER, f"{ACTOR}.diffusion_loss.loss_mode=dpo", "algorithm.sample_source=offline")


def accepted(*arguments: str, without: str = "none") -> Conversion:
    """The conversion to a valid job, which refuses nothing; `without` the required settings that begin so."""
    converted = convert([*(text for text in REQUIRED if not text.startswith(without)), *arguments])
    assert converted.refused == ()
    read_job(plan.dump_yaml(converted.document), "job")
    return converted


def spec(*arguments: str) -> dict[str, Any]:
    """The spec of a valid job without anything left out."""
    return accepted(*arguments).document["spec"]


def settings_of(document: dict[str, Any] | Path) -> dict[str, str]:
    """What the trainer gets from a job."""
    loaded = load_job(document) if isinstance(document, Path) else read_job(plan.dump_yaml(document), "job")
    overrides = plan.render_overrides(loaded.job, plan.local_layout(loaded.job, "/runs"))
    return dict(override.lstrip("+").split("=", 1) for override in overrides)


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_a_job_rendered_and_converted_trains_the_same(path: Path) -> None:
    """The renderer's own overrides are a recipe. What a recipe leaves open gets the reference's defaults."""
    original = settings_of(path)
    conversion = convert([f"{name}={value}" for name, value in original.items()])
    assert conversion.refused == ()
    converted = settings_of(conversion.document)
    assert {name: converted.get(name) for name in original} == original


@pytest.mark.slow
def test_every_setting_is_somewhere() -> None:
    """Each setting of the reference is in the job, or the result names it."""
    with (ROOT / "docs" / "figures" / "reference-settings.tsv").open(encoding="utf-8", newline="") as file:
        names = [row["setting"] for row in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)]
    for name in names:
        converted = convert([*REQUIRED, f"{name}=7"])
        text = plan.dump_yaml(converted.document)
        named = {argument.partition("=")[0] for argument in converted.without_effect}
        named |= {argument.partition("=")[0] for argument, _ in converted.refused}
        target = target_of(name)
        placed = target in {*CONVERSIONS, *TOGETHER, *IMPLIED, "trainer.experiment_name"}
        assert placed or target.startswith(f"{SCORERS}.") or f"{target}=7" in text or target in named, name


def test_the_defaults_are_those_of_the_reference() -> None:
    with (ROOT / "docs" / "figures" / "reference-settings.tsv").open(encoding="utf-8", newline="") as file:
        rows = csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE)
        theirs = {row["setting"]: row["default"].replace("None", "null") for row in rows}
    assert {name: theirs[name] for name in REFERENCE_DEFAULTS} == REFERENCE_DEFAULTS


def test_algorithms_without_recorded_steps_draw_without_noise_unless_it_is_given() -> None:
    for loss in ("diffusion_nft", "dpo"):
        algorithm = (ADAPTER, f"{ACTOR}.diffusion_loss.loss_mode={loss}")
        assert spec(*algorithm)["rollout"]["sampler"]["noiseLevel"] == 0.0
        louder = spec(*algorithm, f"{ROLLOUT}.algo.noise_level=0.5")
        assert louder["rollout"]["sampler"]["noiseLevel"] == 0.5
    assert spec()["rollout"]["sampler"]["noiseLevel"] == 1.0


def test_pairs_of_a_data_set_need_no_number_of_samples() -> None:
    assert "samplesPerPrompt" not in accepted(*PAIRS, without=f"{ROLLOUT}.n=").document["spec"]["rollout"]


@pytest.mark.parametrize(
    ("arguments", "parallel"),
    [
        (["trainer.n_gpus_per_node=1"], 1),
        (["trainer.n_gpus_per_node=1", "trainer.nnodes=2"], 1),
        (["trainer.n_gpus_per_node=3", "data.train_batch_size=48"], 1),
        (["trainer.n_gpus_per_node=4"], 2),
        (["trainer.n_gpus_per_node=4", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=1"], 1),
        (["trainer.n_gpus_per_node=1", f"{ROLLOUT}.nnodes=1", f"{ROLLOUT}.n_gpus_per_node=4"], 2),
    ],
)
def test_the_default_tensor_parallel_size_fits_the_accelerators(arguments: list[str], parallel: int) -> None:
    for algorithm in ((), PAIRS):
        converted = accepted(*algorithm, *arguments, without=f"{ROLLOUT}.tensor_model_parallel_size")
        assert converted.document["spec"]["rollout"]["engine"]["tensorParallelSize"] == parallel


@pytest.mark.parametrize(("accelerators", "parallel"), [(1, 1), (2, 2)])
def test_the_default_tensor_parallel_size_of_a_judge_fits_too(accelerators: int, parallel: int) -> None:
    judge = ("reward.reward_model.enable=True", "reward.reward_model.model_path=judge")
    colocated = spec(*judge, f"trainer.n_gpus_per_node={accelerators}", f"{ROLLOUT}.tensor_model_parallel_size=1")
    pool = ("reward.reward_model.enable_resource_pool=True", f"reward.reward_model.n_gpus_per_node={accelerators}")
    for converted in (colocated, spec(*judge, *pool)):
        assert converted["reward"]["model"]["tensorParallelSize"] == parallel


def test_a_number_of_samples_next_to_pairs_of_a_data_set_has_no_effect() -> None:
    assert f"{ROLLOUT}.n=1" in accepted(*PAIRS, f"{ROLLOUT}.n=1").without_effect


def test_pairs_of_a_data_set_need_no_reward_function() -> None:
    """Without one nothing is evaluated, so the job has no held-out prompts, and a scorer that is not called."""
    converted = accepted(*PAIRS, "data.val_files=test.parquet", without="reward.")
    assert "data.val_files=test.parquet" in converted.without_effect
    assert "validation" not in converted.document["spec"]["data"]


def test_options_of_hydra_that_name_the_configuration_have_no_effect() -> None:
    options = ("--config-name=diffusion_trainer", "--config-path=config")
    for written in (options, ("--config-name", "diffusion_trainer", "-cp", "config")):
        assert accepted(*written).without_effect == options
    ((argument, reason),) = convert([*REQUIRED, "--config-name=another"]).refused
    assert argument == "--config-name=another"
    assert reason.startswith("another is not supported; write diffusion_trainer or ")


def test_the_tokenizer_of_the_model_follows_the_model() -> None:
    """In pods the folder of a model id is another one."""
    name = "actor_rollout_ref.model.tokenizer_path"
    converted = convert([*REQUIRED, f"{name}=Qwen/Qwen-Image/tokenizer"])
    assert converted.without_effect == (f"{name}=Qwen/Qwen-Image/tokenizer",)
    assert f"{name}=/other/tokenizer" in spec(f"{name}=/other/tokenizer")["algorithm"]["overrides"]


def test_a_mapping_needs_no_blanks() -> None:
    algo = "{noise_level:1.2,sde_type:sde,sde_window_size:2,sde_window_range:[0,4]}"
    assert spec(f"{ROLLOUT}.algo={algo}") == spec(f"{ROLLOUT}.algo={algo.replace(':', ': ')}")
    functions = "{a:{path:pkg://my.ocr,weight:0.5,text:'a,b:c'}}"
    (scorer,) = spec(f"reward.reward_functions={functions}")["reward"]["scorers"]
    assert scorer["function"]["path"] == "pkg://my.ocr" and scorer["settings"] == {"text": "a,b:c"}


def test_a_group_that_is_given_as_a_whole_is_its_settings() -> None:
    algo = "{noise_level: 1.2, sde_type: sde, sde_window_size: 2, sde_window_range: [0, 4]}"
    fields = spec(f"{ROLLOUT}.algo={algo}", "actor_rollout_ref.actor.optim={lr: 3e-4, betas: [0.9, 0.99]}")
    window = {"size": 2, "start": 0, "end": 4}
    assert fields["rollout"]["sampler"] == {"noiseLevel": 1.2, "type": "sde", "window": window}
    assert fields["trainer"]["learningRate"] == 3e-4
    assert f"{ACTOR}.optim.betas=[0.9, 0.99]" in fields["algorithm"]["overrides"]
    functions = "{a: {path: 'pkg://my.ocr', weight: 0.5, required: true}, b: {path: 'pkg://my.other'}}"
    assert spec(f"reward.reward_functions={functions}")["reward"]["scorers"] == [
        {"name": "a", "function": {"path": "pkg://my.ocr", "name": "compute_score"}, "weight": 0.5, "required": True},
        {"name": "b", "function": {"path": "pkg://my.other", "name": "compute_score"}},
    ]
    extra = "actor_rollout_ref.model.extra_tokenizers={t5: {path: x}}"
    assert "extra_tokenizers={t5: {path: x}}" in plan.dump_yaml(convert([*REQUIRED, extra]).document)


def test_nodes_for_the_engines_are_rollout_pods() -> None:
    rollout = spec(f"{ROLLOUT}.nnodes=2", f"{ROLLOUT}.n_gpus_per_node=8")["rollout"]
    assert (rollout["placement"], rollout["replicas"]) == ("Separate", 2)
    assert rollout["accelerator"] == {"vendor": "NVIDIA", "count": 8}
    like_the_trainer = spec(f"{ROLLOUT}.nnodes=2")["rollout"]
    assert like_the_trainer["accelerator"]["count"] == 4
    shared = convert([*REQUIRED, f"{ROLLOUT}.nnodes=0", f"{ROLLOUT}.n_gpus_per_node=8"])
    assert "placement" not in shared.document["spec"]["rollout"]
    assert shared.without_effect == (f"{ROLLOUT}.n_gpus_per_node=8",)


def test_the_mode_of_the_trainer_v1_says_how_many_batches_are_generated_ahead() -> None:
    pool = f"{ROLLOUT}.nnodes=2"
    mode = "trainer.v1.trainer_mode"
    ahead = "trainer.v1.separate_async.num_warmup_batches"
    assert spec("trainer.use_v1=true", f"{mode}=separate_async", pool)["rollout"]["batchesAhead"] == 1
    asked = ("trainer.use_v1=true", f"{mode}=separate_async", pool)
    assert spec(*asked, f"{ahead}=2")["rollout"]["batchesAhead"] == 2
    bypass = "algorithm.rollout_correction.bypass_mode"
    assert f"{bypass}=false" in spec(*asked)["algorithm"]["overrides"], "the reference's default, not a job's"
    assert f"{bypass}=false" not in spec(*asked, f"{bypass}=true")["algorithm"]["overrides"]
    synchronous = convert([*REQUIRED, "trainer.use_v1=true", f"{mode}=sync"])
    assert "batchesAhead" not in synchronous.document["spec"]["rollout"]
    assert synchronous.without_effect == ("trainer.use_v1=True", f"{mode}=sync")
    ((_, why),) = convert([*REQUIRED, f"{mode}=colocate_async"]).refused
    assert why == f"colocate_async is not supported; write sync, or separate_async with {ROLLOUT}.nnodes > 0"


@pytest.mark.parametrize(
    ("arguments", "lora"),
    [
        ((), {"enabled": False}),
        (("lora_rank=0", "lora_alpha=8"), {"enabled": False}),
        (("lora_rank=64", "lora_alpha=128"), {"rank": 64, "alpha": 128, "targetModules": ["all-linear"]}),
        (("lora_rank=8", "target_modules=all-linear"), {"rank": 8, "targetModules": ["all-linear"]}),
        (("lora_adapter_path=/sft",), {"startFrom": "/sft"}),
        (
            ("lora_adapter_path=/sft", "lora_rank=8", "lora_alpha=4", "target_modules=[to_q]"),
            {"startFrom": "/sft", "rank": 8, "alpha": 4, "targetModules": ["to_q"]},
        ),
        (("lora_rank=8", "target_modules=['to_q','to_k']"), {"rank": 8, "targetModules": ["to_q", "to_k"]}),
    ],
)
def test_an_adapter_is_trained_where_it_has_a_rank(arguments: tuple[str, ...], lora: dict[str, Any]) -> None:
    assert spec(*(f"actor_rollout_ref.model.{argument}" for argument in arguments))["model"]["lora"] == lora


@pytest.mark.parametrize(
    ("arguments", "window"),
    [
        (("sde_window_size=2",), {"size": 2, "start": 0, "end": 5}),
        (("sde_window_range=[1,4]",), {"size": 3, "start": 1, "end": 4}),
        (
            ("sde_window_size=1", "sde_window_range=[0,3]", "sample_strategy=progressive", "iters_per_group=5"),
            {"size": 1, "start": 0, "end": 3, "placement": "Progressive", "stepsPerPlace": 5},
        ),
    ],
)
def test_windows(arguments: tuple[str, ...], window: dict[str, Any]) -> None:
    assert spec(*(f"{ROLLOUT}.algo.{argument}" for argument in arguments))["rollout"]["sampler"]["window"] == window


FLOW, DANCE, MIX = (f"algorithm.adv_estimator={name}_grpo" for name in ("flow", "dance", "mix"))
DANCE_SDE = f"{ROLLOUT}.algo.sde_type=dance_sde"
LOSS_MODE = f"{ACTOR}.diffusion_loss.loss_mode"
SAMPLED_FOR = "actor_rollout_ref.model.algorithm"
SIZE = f"{ROLLOUT}.algo.sde_window_size=2"


@pytest.mark.parametrize(
    ("arguments", "name", "placement"),
    [
        ([DANCE, DANCE_SDE], "DanceGRPO", None),
        ([f"{LOSS_MODE}=dance_grpo"], "DanceGRPO", None),
        ([DANCE], "FlowGRPO", None),
        ([f"{LOSS_MODE}=dance_grpo", f"{ROLLOUT}.algo.sde_type=sde"], "FlowGRPO", None),
        ([f"{LOSS_MODE}=dance_grpo", FLOW], "DanceGRPO", None),
        ([f"{LOSS_MODE}=mix_grpo", SIZE], "MixGRPO", "Random"),
        ([MIX, SIZE], "MixGRPO", "Random"),
        ([MIX, SIZE, f"{ROLLOUT}.algo.sample_strategy=progressive"], "MixGRPO", "Progressive"),
        ([f"{LOSS_MODE}=flow_grpo", DANCE, DANCE_SDE], "DanceGRPO", None),
        ([f"{LOSS_MODE}=grpo_guard", DANCE, DANCE_SDE], "GRPOGuard", None),
        ([f"{LOSS_MODE}=flow_grpo", f"{SAMPLED_FOR}=dance_grpo"], "DanceGRPO", None),
        ([f"{LOSS_MODE}=flow_grpo", f"{SAMPLED_FOR}=mix_grpo", SIZE], "MixGRPO", "Random"),
    ],
)
def test_names_of_algorithms(arguments: list[str], name: str, placement: str | None) -> None:
    fields = spec(*arguments)
    assert fields["algorithm"]["name"] == name
    assert fields["rollout"].get("sampler", {}).get("window", {}).get("placement") == placement
    assert not [text for text in fields["algorithm"]["overrides"] if "global_std" in text], "they share the default"


def test_settings_of_a_window_without_one_are_named() -> None:
    moving = [f"{ALGO}.sample_strategy=progressive", f"{ALGO}.iters_per_group=5"]
    assert convert([*REQUIRED, *moving]).without_effect == (*moving,)
    size = f"{ALGO}.sde_window_size=2"
    assert convert([*REQUIRED, size, moving[1]]).without_effect == (moving[1],)
    assert convert([*REQUIRED, size, *moving]).without_effect == ()
    assert refused(size, f"{ALGO}.sample_strategy=moving") == {
        f"{ALGO}.sample_strategy=moving": "moving is not supported; write random or progressive"
    }


@pytest.mark.parametrize("loggers", ["null", "[]"])
def test_a_project_without_a_tracker_is_named(loggers: str) -> None:
    none = f"trainer.logger={loggers}"
    assert "project" not in spec(none).get("observability", {}).get("tracking", {})
    assert convert([*REQUIRED, none]).without_effect == ()
    assert convert([*REQUIRED, none, "trainer.project_name=mine"]).without_effect == ("trainer.project_name=mine",)


def test_several_rewards() -> None:
    fields = spec(
        "reward.reward_functions.ocr.path=pkg://my.ocr",
        "+reward.reward_functions.ocr.name=score",
        "reward.reward_functions.ocr.weight=0.5",
        "reward.reward_functions.ocr.server_url=http://localhost:1",
        "reward.reward_functions.jpeg.name=jpeg",
        "reward.reward_manager.name=MultiVisualRewardManager",
    )
    assert fields["reward"]["scorers"] == [
        {
            "name": "ocr",
            "function": {"path": "pkg://my.ocr", "name": "score"},
            "weight": 0.5,
            "settings": {"server_url": "http://localhost:1"},
        },
        {"name": "jpeg", "builtin": "jpeg"},
    ]


NPU = {"vendor": "Ascend", "count": 1}


def test_the_use_and_the_pool_of_a_reward() -> None:
    of = "+reward.reward_functions"
    assert spec(
        f"{of}.hpsv3.use=evaluation",
        f"{of}.hpsv3.pool={{nnodes: 2, n_gpus_per_node: 1, node_resource: scorers}}",
        f"{of}.jpeg.pool.python=envs/a/bin/python",
        "trainer.device=npu",
        "data.val_files=held_out.parquet",
    )["reward"]["scorers"] == [
        {"name": "hpsv3", "use": "Evaluation", "pool": {"replicas": 2, "accelerator": NPU}},
        {"name": "jpeg", "pool": {"replicas": 1, "python": "envs/a/bin/python"}},
    ]


REFERENCE_SCORERS = "verl_omni/utils/reward_score"
PICKSCORE = {"score_scale": 1 / 26}  # the reference divides, this project does not


def test_the_arguments_of_a_reward_function_are_its_settings() -> None:
    function = "reward.custom_reward_function"
    arguments = ["depth=4", "color=red"]
    prefixed = [f"+{function}.reward_kwargs.{text}" for text in arguments]
    (scorer,) = spec(*prefixed)["reward"]["scorers"]
    assert (scorer["function"]["path"], scorer["settings"]) == ("score.py", {"depth": 4, "color": "red"})
    (of_reference,) = spec(
        f"{function}.path={REFERENCE_SCORERS}/jpeg_compressibility.py", f"{function}.reward_kwargs.quality=5"
    )["reward"]["scorers"]
    assert of_reference == {"name": "jpeg_compressibility", "settings": {"quality": 5}}


def test_settings_of_lora_without_a_rank_are_named() -> None:
    model = "actor_rollout_ref.model"
    converted = convert([*REQUIRED, f"{model}.lora_alpha=128", f"+{model}.target_modules=[to_q]"])
    assert converted.document["spec"]["model"]["lora"] == {"enabled": False}
    assert converted.without_effect == (f"{model}.lora_alpha=128", f"{model}.target_modules=['to_q']")


def test_one_scorer_of_the_reference_that_asks_a_server_becomes_a_server_too() -> None:
    function = "reward.custom_reward_function"
    fields = spec(
        f"{function}.path={REFERENCE_SCORERS}/http_scorer_client.py",
        f"{function}.name=compute_score",
        f"+{function}.reward_kwargs.server_url=http://localhost:19082",
        f"+{function}.reward_kwargs.timeout=30",
    )
    server = {"url": "http://localhost:19082", "timeoutSeconds": 30, "protocol": "Pickle"}
    assert fields["reward"]["scorers"] == [{"name": "http", "http": server}]


def test_the_settings_of_a_scorer_of_the_reference_may_be_those_of_this_trainer() -> None:
    path = f"reward.custom_reward_function.path={REFERENCE_SCORERS}/genrm_ocr.py"
    fields = spec(path, "+reward.scorer_kwargs.base_url=http://judge:8000/v1", "+reward.scorer_kwargs.model=m")
    (scorer,) = fields["reward"]["scorers"]
    assert scorer == {"name": "genrm_ocr", "settings": {"base_url": "http://judge:8000/v1", "model": "m"}}


def test_a_scorer_of_the_reference_becomes_the_built_in_one_of_its_name() -> None:
    path = f"reward.custom_reward_function.path=$HOME/verl-omni/{REFERENCE_SCORERS}/pickscore_reward.py"
    fields = spec(path, "reward.custom_reward_function.name=compute_score_pickscore")
    assert fields["reward"]["scorers"] == [{"name": "pickscore", "settings": PICKSCORE}]
    several = "reward.reward_functions"
    fields = spec(
        f"{several}.pick.path=pkg://{REFERENCE_SCORERS.replace('/', '.')}.pickscore_reward",
        f"{several}.pick.weight=0.5",
        f"{several}.pick.name=compute_score",
        f"{several}.pick.device=cuda:0",
        f"{several}.jpeg.path={REFERENCE_SCORERS}/jpeg_compressibility.py",
        f"{several}.hps.path={REFERENCE_SCORERS}/hpsv3_reward.py",
        f"{several}.ocr.path={REFERENCE_SCORERS}/http_scorer_client.py",
        f"{several}.ocr.server_url=http://localhost:1",
        f"{several}.ocr.timeout=30",
    )
    assert fields["reward"]["scorers"] == [
        {"name": "pick", "builtin": "pickscore", "weight": 0.5, "settings": {"device": "cuda:0", **PICKSCORE}},
        {"name": "jpeg", "builtin": "jpeg_compressibility"},
        {"name": "hps", "builtin": "hpsv3"},
        {"name": "ocr", "http": {"url": "http://localhost:1", "timeoutSeconds": 30, "protocol": "Pickle"}},
    ]
    assert spec("reward.custom_reward_function.path=my/reward_score/pickscore.py")["reward"]["scorers"] == [
        {"name": "reward", "function": {"path": "my/reward_score/pickscore.py", "name": "compute_score"}}
    ]


def test_options_of_published_scorers_are_converted() -> None:
    several = "reward.reward_functions"
    package = f"pkg://{REFERENCE_SCORERS.replace('/', '.')}"
    scorers = spec(
        f"{several}.ocr.path={package}.http_scorer_client",
        f"{several}.ocr.server_url=http://localhost:1",
        f"{several}.ocr.max_retries=4",
        f"{several}.ocr.retry_backoff=0.5",
        f"{several}.hps.path={package}.hpsv3_reward",
        f"{several}.hps.reward_scale=0.1",
    )["reward"]["scorers"]
    server = {"url": "http://localhost:1", "attempts": 5, "retryBackoffSeconds": 0.5, "protocol": "Pickle"}
    assert scorers == [
        {"name": "ocr", "http": server},
        {"name": "hps", "builtin": "hpsv3", "settings": {"score_scale": 0.1}},
    ]


@pytest.mark.parametrize(("module", "function"), [("clap_on_video", "compute_score"), ("genrm_ocr", "mine")])
def test_a_file_of_the_users_among_the_scorers_of_the_reference_stays_a_function(module: str, function: str) -> None:
    path = "reward.custom_reward_function.path"
    name = "reward.custom_reward_function.name"
    (scorer,) = spec(f"{path}={REFERENCE_SCORERS}/{module}.py", f"{name}={function}")["reward"]["scorers"]
    assert scorer["function"] == {"path": f"{REFERENCE_SCORERS}/{module}.py", "name": function}
    (reason,) = refused(f"{path}=pkg://{REFERENCE_SCORERS.replace('/', '.')}.{module}_of_mine").values()
    assert "does not exist; the reference's modules of scorers are choice_reward, clap, " in reason


def test_a_judge_of_the_reference_becomes_the_judge_of_the_job() -> None:
    judge = (
        f"reward.custom_reward_function.path={REFERENCE_SCORERS}/genrm_ocr.py",
        "reward.reward_model.enable=True",
        "reward.reward_model.model_path=Qwen/Qwen3-VL-8B-Instruct",
        "reward.reward_model.rollout.name=vllm",
        "reward.reward_model.rollout.tensor_model_parallel_size=1",
    )
    fields = spec(*judge, "reward.reward_model.rollout.max_model_len=8192")
    assert fields["reward"] == {
        "scorers": [{"name": "genrm_ocr"}],
        "model": {"base": "Qwen/Qwen3-VL-8B-Instruct", "tensorParallelSize": 1},
    }
    assert "reward.reward_model.rollout.max_model_len=8192" in fields["algorithm"]["overrides"]
    separate = spec(
        *judge,
        "reward.reward_model.enable_resource_pool=True",
        "reward.reward_model.nnodes=1",
        "reward.reward_model.n_gpus_per_node=2",
    )["reward"]["model"]
    assert separate["placement"] == "Separate" and separate["replicas"] == 1
    assert separate["accelerator"] == {"vendor": "NVIDIA", "count": 2}
    converted = convert([*REQUIRED, "reward.reward_model.enable=False", "reward.reward_model.nnodes=1"])
    assert "model" not in converted.document["spec"]["reward"]
    assert "reward.reward_model.nnodes=1" in converted.without_effect


def test_a_judge_without_a_model_is_refused() -> None:
    assert "names no model for its judge" in " ".join(refused("reward.reward_model.enable=True").values())


@pytest.mark.parametrize("name", ["imagebind", "choice_reward", "videoalign_native"])
def test_a_scorer_of_the_reference_that_does_not_exist_is_refused(name: str) -> None:
    reasons = refused(f"reward.reward_functions.a.path=pkg://{REFERENCE_SCORERS.replace('/', '.')}.{name}")
    unavailable = f"the scorer {name.removesuffix('_reward')} is not available: "
    assert any(reason.startswith(unavailable) for reason in reasons.values())


def test_a_scorer_whose_function_is_not_known_is_refused_by_its_file_with_what_to_write() -> None:
    part = f"{{path: {REFERENCE_SCORERS}/videoalign_native.py, name: its_function, weight: 1.0}}"
    (reason,) = refused(f"reward.reward_functions.a={part}").values()
    assert "write `videoalign`, with `template_path` and `video_fps`" in reason


@pytest.mark.parametrize(
    ("experiment", "name"),
    [
        ("qwen_image_OCR", "qwen-image-ocr"),
        ("3_steps", "run-3-steps"),
        ("x" * 60, "x" * 43),
        ("sd3_$(date +%m%d)_lora", "sd3-lora"),
        ("`date +%F`", "run"),
        ("${EXP}_lr$LR", "lr"),
        ("${trainer.project_name}_lora", "flow-grpo-lora"),
    ],
)
def test_the_name_of_the_experiment_becomes_a_name_of_kubernetes(experiment: str, name: str) -> None:
    arguments = [*REQUIRED, "trainer.project_name=flow_grpo", f"trainer.experiment_name={experiment}"]
    assert convert(arguments).document["metadata"]["name"] == name


def test_a_field_gets_the_value_of_the_setting_that_its_text_stands_for() -> None:
    fields = spec(
        "data.train_batch_size=${trainer.total_training_steps}",
        "data.val_files=${data.train_files}",
        f"{ROLLOUT}.val_kwargs.pipeline.height=${{{ROLLOUT}.pipeline.height}}",
        f"{ROLLOUT}.pipeline.height=256",
        f"{ACTOR}.ppo_mini_batch_size=100",
    )
    assert fields["trainer"]["batch"] == {"prompts": 300, "miniBatchPrompts": 100}
    assert fields["data"] == {"promptLength": 512, "train": ["train.parquet"], "validation": ["train.parquet"]}
    assert f"{ROLLOUT}.val_kwargs.pipeline.height=${{{ROLLOUT}.pipeline.height}}" in fields["algorithm"]["overrides"]
    loop = refused("data.seed=${data.train_batch_size}", "data.train_batch_size=${data.seed}")
    assert set(loop) >= {"data.seed=${data.train_batch_size}", "data.train_batch_size=${data.seed}"}

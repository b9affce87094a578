"""Modules of users register algorithms, losses, advantages, model families and rewards (`verl_omni.extensions`)."""

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Literal

import pytest
import torch
from omegaconf import OmegaConf
from verl.utils.config import omega_conf_to_dataclass

from tests.ml import smallest_job
from tests.ml.smallest_job import refusal
from verl_omni import extensions
from verl_omni.pipelines.registry import FAMILIES, encoder_class, training_adapter
from verl_omni.pipelines.sample_shapes import sample_shapes
from verl_omni.reward_loop.rewards import SCORERS, get_scorer
from verl_omni.trainer.settings import reward_settings
from verl_omni.utils.registry import Registry, merged
from verl_omni.workers.algorithms.base import TrainingAlgorithm, training_algorithm
from verl_omni.workers.algorithms.estimators import ESTIMATORS
from verl_omni.workers.algorithms.flow_grpo import FlowGRPO, GRPOLossConfig
from verl_omni.workers.algorithms.registered import ALGORITHMS, job_names
from verl_omni.workers.config import DiffusionModelConfig
from verl_omni.workers.config.diffusion.file_defaults import FROM_FILE

REGISTRIES: tuple[Registry[Any], ...] = (ALGORITHMS, ESTIMATORS, FAMILIES, SCORERS)
LOSS = "actor_rollout_ref.actor.diffusion_loss"
EXTERNAL = "actor_rollout_ref.model.external_lib"
MODEL = Path(__file__).parents[2] / "examples" / "shapes-sd3"
LAMBDA: Any = lambda: 0.0  # noqa: E731 - what a user may write


@pytest.fixture(autouse=True)
def module(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A user's module that Python finds; after the test, nothing of it is registered."""
    for registry in REGISTRIES:
        monkeypatch.setattr(registry, "_entries", dict(registry))
    shutil.copy(Path(__file__).with_name("own_extension.py"), tmp_path / "my_extension.py")
    monkeypatch.syspath_prepend(tmp_path)
    yield "my_extension"
    sys.modules.pop("my_extension", None)


def load(*overrides: str) -> Any:
    return smallest_job.load(f"{EXTERNAL}=my_extension", *overrides)


def test_an_algorithm_has_its_own_settings_and_those_of_the_one_that_it_is_like() -> None:
    config = load(f"{LOSS}.loss_mode=my_algorithm", f"{LOSS}.scale=3")
    assert config.actor_rollout_ref.model.algorithm == "my_algorithm"
    assert config.actor_rollout_ref.rollout.calculate_log_probs is True
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
    assert (type(loss).__name__, loss.scale, loss.clip_ratio) == ("ScaledLossConfig", 3, 1e-4)
    algorithm = training_algorithm("my_algorithm")
    samples: Any = SimpleNamespace(tensors={}, scores=torch.tensor([0.0, 1.0]), groups=["a", "a"])
    plain = training_algorithm("flow_grpo").training_batch(samples, loss, config, 1)["advantages"]
    assert algorithm.training_batch(samples, loss, config, 1)["advantages"].tolist() == (3 * plain).tolist()


def test_an_algorithm_is_checked_like_the_one_that_it_is_like() -> None:
    name = f"{LOSS}.loss_mode=my_algorithm"
    assert "my_algorithm learns from noise" in refusal(
        f"{EXTERNAL}=my_extension", name, "actor_rollout_ref.rollout.algo.noise_level=0"
    )
    assert f"{LOSS}.scales: unknown setting; did you mean {LOSS}.scale?" == refusal(
        f"{EXTERNAL}=[my_extension]", name, f"{LOSS}.scales=1"
    )


def policy_loss(loss: Any) -> Any:
    """What the user's loss makes of advantages 1 and -0.2, and what it measures."""
    objective: Any = training_algorithm("my_loss").objective(
        SimpleNamespace(), loss, SimpleNamespace(use_kl_loss=False), {"noise_level": 0.7, "sde_type": "sde"}
    )  # type: ignore[call-overload]
    ratio = torch.zeros(2, requires_grad=True)
    return objective.policy_loss({"advantages": torch.tensor([1.0, -0.2])}, 0, ratio, ratio, ratio)


@pytest.mark.parametrize("made", [torch.zeros(2), torch.tensor([0.0, 1.0, torch.nan])])
def test_wrong_advantages_are_refused(made: torch.Tensor, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load("algorithm.adv_estimator=my_advantage")
    monkeypatch.setattr(sys.modules["my_extension"], "centred", lambda rewards, groups, settings: made)
    samples: Any = SimpleNamespace(tensors={}, scores=torch.tensor([0.0, 1.0, 5.0]), groups=["a", "a", "b"])
    with pytest.raises(ValueError, match="my_advantage returned"):
        training_algorithm("flow_grpo").training_batch(samples, None, config, 1)


def test_a_reward_is_a_scorer_by_its_name() -> None:
    config = load("reward.scorer=my_reward", "reward.scorer_kwargs.weight=2")
    assert reward_settings.find_problems(config.reward) == []
    image = torch.full((3, 2, 2), 255, dtype=torch.uint8)
    assert get_scorer("my_reward")("test", image, None, {}, weight=2.0) == 2.0
    (problem,) = reward_settings.find_problems(load("reward.scorer=my_reward", "reward.scorer_kwargs.wait=2").reward)
    assert problem == "reward.scorer_kwargs.wait: unknown setting; did you mean weight?"


def test_the_module_and_the_command_of_the_docs(tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs" / "guides" / "own-family.md").read_text(encoding="utf-8")
    page = page.partition("\n## Extensions\n")[2]
    (code,) = re.findall(r"```python\n(.*?)```", page, re.DOTALL)
    (command,) = re.findall(r"```sh\n(.*?)```", page, re.DOTALL)
    (tmp_path / "my_extension.py").write_text(code)
    config = smallest_job.load(*re.findall(r"[a-z_.]+=\w+", command))
    assert reward_settings.find_problems(config.reward) == []
    assert (config.algorithm.adv_estimator, config.reward.scorer_kwargs.weight) == ("my_advantage", 2)
    loss = omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss)
    losses, _ = policy_loss(loss)
    assert losses.tolist() == pytest.approx([-1.0, 0.2])
    samples: Any = SimpleNamespace(tensors={}, scores=torch.tensor([0.0, 1.0]), groups=["a", "a"])
    assert training_algorithm("my_loss").training_batch(samples, loss, config, 1)["advantages"].tolist() == [-0.5, 0.5]
    assert get_scorer("my_reward")("test", torch.full((3, 2, 2), 255, dtype=torch.uint8), None, {}) == 1.0


def test_a_model_family_is_found_by_its_architecture() -> None:
    load()
    adapter = training_adapter("MyPipeline")
    assert adapter.LORA_TARGETS == ("attn.to_q",)
    assert adapter.guidance(SimpleNamespace(guidance_scale=3.0)) == 3.0
    assert FAMILIES["MyPipeline"].pipeline_class == "verl_omni.pipelines.sd3.engine_pipeline.SD3RolloutPipeline"
    with pytest.raises(ValueError, match="MyPipeline: its model family is registered without `shapes`"):
        sample_shapes("MyPipeline")
    with pytest.raises(ValueError, match="offline is supported for StableDiffusion3Pipeline, not for MyPipeline"):
        encoder_class("MyPipeline")


def test_workers_import_the_module_before_they_look_a_name_up() -> None:
    assert "my_extension" not in sys.modules
    config = DiffusionModelConfig(path=str(MODEL), external_lib="my_extension", algorithm="my_algorithm")
    assert config.algorithm == "my_algorithm"


def test_reward_workers_import_the_module() -> None:
    from verl_omni.reward_loop.reward_manager import VisualRewardManager

    config = OmegaConf.create(
        {
            "reward": {"scorer": "my_reward", "scorer_kwargs": {}, "reward_model": {}},
            "actor_rollout_ref": {"model": {"external_lib": ["my_extension"]}},
        }
    )
    scorer, _ = VisualRewardManager(config, None, None).select_scorer("any")
    assert scorer.__name__ == "redness"


def test_a_module_that_does_not_exist_is_refused_in_words() -> None:
    assert refusal(f"{EXTERNAL}=my_extention") == (
        f"{EXTERNAL}: no module 'my_extention'; write the name of a Python module that is installed, or in a folder of "
        "PYTHONPATH"
    )


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("import no_such_package", "ModuleNotFoundError: No module named 'no_such_package'"),
        ("import sys; sys.exit(3)", "SystemExit: 3"),
        ("def f(:", "SyntaxError: invalid syntax (broken_extension.py, line 1)"),
        (
            "import verl_omni.pipelines.model_base",
            "ModuleNotFoundError: verl_omni.pipelines.model_base of the reference",
        ),
    ],
)
def test_an_error_inside_the_module_is_that_of_the_settings(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "broken_extension.py").write_text(f"{text}\n")
    assert refusal(f"{EXTERNAL}=broken_extension").startswith(
        f"{EXTERNAL}: the import of broken_extension failed: {message}"
    )


def test_the_trainer_shows_where_a_module_failed(tmp_path: Path) -> None:
    (tmp_path / "broken_extension.py").write_text("import no_such_package\n")
    program = [
        sys.executable,
        "-m",
        "verl_omni.trainer.main_diffusion",
        *smallest_job.REQUIRED,
        f"{EXTERNAL}=broken_extension",
    ]
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    ran = subprocess.run(program, env={**os.environ, "PYTHONPATH": path}, capture_output=True, text=True, check=False)
    assert ran.returncode == 2 and ran.stderr.splitlines()[-1].startswith(f"{EXTERNAL}: the import of")
    assert "broken_extension.py" in ran.stderr, "the traceback says where"


@pytest.mark.parametrize("value", ["''", "5", "[my_extension,7]"])
def test_what_is_no_name_of_a_module_is_refused(value: str) -> None:
    assert refusal(f"{EXTERNAL}={value}").startswith(
        f"{EXTERNAL}: must be the name of a module, or a list of names, not"
    )


def test_what_a_decorator_cannot_register_is_refused() -> None:
    function: Any = test_what_a_decorator_cannot_register_is_refused
    for decorator in (extensions.register_loss, extensions.register_advantage, extensions.register_reward):
        name = decorator.__name__
        with pytest.raises(TypeError, match=rf"{name} takes a name, and got .*: write @{name}\('my_name'\)"):
            decorator(function)
        with pytest.raises(TypeError, match=rf"{name}\('mine'\) takes a function, and got <class"):
            decorator("mine")(Path)
    with pytest.raises(TypeError, match=r"register_algorithm\('mine'\) takes a subclass of TrainingAlgorithm"):
        extensions.register_algorithm("mine")(Path)
    with pytest.raises(ValueError, match=r"pipeline 'my_flux\.Pipeline' must be written as module:Class"):
        extensions.register_family("FluxPipeline", pipeline="my_flux.Pipeline")
    with pytest.raises(ValueError, match=r"a lambda of .* has no name to import it by"):
        extensions.register_reward("mine")(LAMBDA)


@dataclass
class LimitedLossConfig(GRPOLossConfig):
    scale: float = 2.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scale > 10:
            raise ValueError("scale must be at most 10")


class Limited(FlowGRPO):
    settings = LimitedLossConfig


class Unmade(FlowGRPO):
    def __init__(self) -> None:
        raise RuntimeError("no constructor today")


def test_what_an_algorithm_refuses_is_said_before_anything_starts() -> None:
    extensions.register_algorithm("limited")(Limited)
    extensions.register_algorithm("unmade")(Unmade)
    assert load(f"{LOSS}.loss_mode=limited", f"{LOSS}.scale=10")
    message = refusal(f"{EXTERNAL}=my_extension", f"{LOSS}.loss_mode=limited", f"{LOSS}.scale=11")
    assert message.startswith(f"{LOSS}: LimitedLossConfig of ")
    assert message.endswith("ValueError: scale must be at most 10")
    message = refusal(f"{EXTERNAL}=my_extension", f"{LOSS}.loss_mode=unmade")
    assert message.endswith("failed: RuntimeError: no constructor today")


class Undecorated(GRPOLossConfig):
    scale: float = 2.0


@dataclass
class OfNoFile(GRPOLossConfig):
    loss_mode: Literal["mine"] = "mine"
    scale: float = FROM_FILE


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (Undecorated, "Undecorated has fields and is no dataclass: write @dataclass above it"),
        (OfNoFile, "OfNoFile has no defaults of scale: write them in the class"),
    ],
)
def test_settings_that_a_run_could_not_set_are_refused(settings: Any, message: str) -> None:
    with pytest.raises(TypeError, match=rf"register_algorithm\('mine'\): {message}"):
        extensions.register_algorithm("mine")(type("Mine", (FlowGRPO,), {"settings": settings}))


class Half(TrainingAlgorithm[GRPOLossConfig]):
    settings = FlowGRPO.settings

    def training_batch(self, samples: Any, loss: Any, config: Any, seed: int) -> Any:
        return {}


def test_a_class_without_a_required_member_is_refused() -> None:
    with pytest.raises(TypeError, match=r"register_algorithm\('mine'\): Half lacks objective"):
        extensions.register_algorithm("mine")(Half)
    with pytest.raises(TypeError, match=r"register_family\('Mine'\): Half lacks CONDITIONS, LAYERS, .*, velocity"):
        extensions.register_family("Mine", pipeline="a.b:C")(Half)


@pytest.mark.parametrize(
    ("made", "message"),
    [
        (lambda log_ratio: 0.5, "must be a tensor, and is a float"),
        (lambda log_ratio: log_ratio.detach(), "does not depend on log_ratio"),
        (lambda log_ratio: log_ratio.mean(), r"must be \[2\], and is \[\]"),
    ],
)
def test_a_policy_loss_that_trains_nothing_is_refused(made: Any, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    config = load(f"{LOSS}.loss_mode=my_loss")
    monkeypatch.setattr(
        sys.modules["my_extension"], "likelihood", lambda log_ratio, advantages, settings: made(log_ratio)
    )
    with pytest.raises((TypeError, ValueError), match=message):
        policy_loss(omega_conf_to_dataclass(config.actor_rollout_ref.actor.diffusion_loss))


def test_descriptions_with_one_name_are_refused() -> None:
    described = {"flux": {"FluxPipeline": 1}, "mine": {"MinePipeline": 2, "FluxPipeline": 3}}
    with pytest.raises(ValueError, match="flux and mine have the same architecture, FluxPipeline: rename one of them"):
        merged("architecture", described)


def test_a_name_of_this_package_cannot_be_taken() -> None:
    with pytest.raises(ValueError, match="algorithm 'flow_grpo' exists already"):
        extensions.register_loss("flow_grpo")(test_a_name_of_this_package_cannot_be_taken)
    with pytest.raises(ValueError, match="scorer 'jpeg' exists already"):
        extensions.register_reward("jpeg")(test_a_name_of_this_package_cannot_be_taken)
    with pytest.raises(ValueError, match="write one of flow_dppo, flow_grpo, grpo_guard"):
        extensions.register_loss("mine", like="diffusion_nft")(test_a_name_of_this_package_cannot_be_taken)
    with pytest.raises(ValueError, match="inside a function: define it at the top level"):
        extensions.register_reward("mine")(lambda: 0.0)


def test_importing_the_decorators_imports_neither_torch_nor_verl() -> None:
    program = "import sys, verl_omni.extensions; sys.exit(bool({'torch', 'verl'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", program], check=False).returncode == 0


@pytest.mark.slow
def test_the_driver_sets_the_environment_of_torch_and_verl_before_it_imports_the_module(tmp_path: Path) -> None:
    (tmp_path / "environment_probe.py").write_text(
        "import os, sys\nprint(os.environ.get('RAY_DEDUP_LOGS'), 'torch' in sys.modules)\n"
    )
    program = f"from verl_omni.trainer.main_diffusion import main; main(['{EXTERNAL}=environment_probe', 'no.name=1'])"
    variables = {name: value for name, value in os.environ.items() if name != "RAY_DEDUP_LOGS"}
    paths = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        check=False,
        env={**variables, "PYTHONPATH": paths},
    )
    assert done.stdout.splitlines()[0] == "0 False", done.stderr


def test_an_algorithm_like_diffusion_dpo_may_train_on_pairs_of_a_data_set() -> None:
    extensions.register_algorithm("my_dpo", like="diffusion_dpo")(type(training_algorithm("diffusion_dpo")))
    offline = [f"{LOSS}.loss_mode=my_dpo", "algorithm.sample_source=offline", "actor_rollout_ref.model.lora_rank=4"]
    assert load(*offline).actor_rollout_ref.model.algorithm == "my_dpo"
    assert ALGORITHMS["my_dpo"].rows_per_prompt(8) == 1
    assert job_names()["DiffusionDPO"][0] == "diffusion_dpo", "a job's name stays the built-in algorithm's"

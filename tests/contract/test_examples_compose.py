"""Every example is valid, its overrides load in the trainer's settings, and released models fit into memory."""

import json
import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from omegaconf import OmegaConf
from typer.testing import CliRunner

from omni_operator import plan
from omni_operator.api import load_job
from omni_operator.cli.main import app

ROOT = Path(__file__).parents[2]
EXAMPLES = sorted((ROOT / "examples").glob("*.yaml"))
CLAIMS = {
    claim["metadata"]["name"]
    for path in (ROOT / "examples" / "claims").glob("*.yaml")
    for claim in yaml.safe_load_all(path.read_text())
}
# The largest trained weights, the largest samples of two models, training without samples, and the tutorials.
FITTED = [
    "qwen-image-full-grpo",
    "wan-dance-grpo",
    "wan22-5b-dance-grpo",
    "sd35-offline-dpo",
    "sd35-ocr-1gpu",
    "qwen-image-ocr-grpo",
]
# Tutorials with a table of phases: GiB of an accelerator and of the host.
TUTORIALS = {"sd35-ocr-1gpu": "sd35.md", "qwen-image-ocr-grpo": "qwen-image.md", "wan22-5b-dance-grpo": "wan22.md"}
RELEASED = [path for path in EXAMPLES if "/" in load_job(path).job.spec.model.base]  # repositories of the hub


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_is_named_like_its_file(path: Path) -> None:
    assert load_job(path).job.metadata.name == path.stem


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_loads_the_entry_point_of_an_example(path: Path) -> None:
    from verl_omni.trainer.settings import configuration

    resolved, layout = plan.resolve_for_pods(load_job(path).job)
    line = plan.render_entrypoint(resolved, layout).partition("; trap : INT TERM; ")[2].partition(' >"$pipe" 2>&1; ')[0]
    config = configuration.load(shlex.split(line)[3:])
    for name, value in plan.render_settings(resolved, layout).items():
        loaded = OmegaConf.select(config, name)
        wanted = list(value) if isinstance(value, tuple) else value
        assert (OmegaConf.to_container(loaded) if OmegaConf.is_config(loaded) else loaded) == wanted, name
    assert config.ray_kwargs.ray_init.address == "auto"
    assert config.trainer.default_local_dir == f"/runs/{path.stem}"


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_an_example_says_why_it_has_settings_that_are_warned_of(path: Path) -> None:
    risks = plan.find_risks(load_job(path).job)
    names = {(risk.text.split()[0] if risk.at[-1] == "overrides" else str(risk.at[-1])) for risk in risks}
    explained = re.findall(r"^# `drl validate` warns of (.+): \w", path.read_text(), re.MULTILINE)
    assert {name.rpartition(".")[2] for name in names} == set(re.split(", | and ", explained[0]) if explained else ())


@pytest.mark.parametrize("path", EXAMPLES, ids=lambda path: path.stem)
def test_the_trainer_warns_of_an_example_as_drl_validate_does(path: Path) -> None:
    from verl_omni.trainer.settings import configuration

    job = plan.resolve_paths(load_job(path).job, str(path.parent))
    config = configuration.load(plan.render_overrides(job, plan.local_layout(job, "/runs")))
    warning = configuration.describe_risks(config)
    risks = plan.find_risks(load_job(path).job)
    assert [risk.text for risk in risks if risk.text not in warning] == []
    assert warning.count("(") == sum(risk.text.count("(") for risk in risks), "the same number of sources"


@pytest.mark.parametrize("path", RELEASED, ids=lambda path: path.stem)
def test_the_operator_takes_an_example_with_a_released_model(path: Path) -> None:
    valid = CliRunner().invoke(app, ["validate", "--cluster", str(path)])
    assert valid.exit_code == 0, valid.output
    rendered = CliRunner().invoke(app, ["render", "--cluster", "--image", "example.com/rollout:1", str(path)])
    assert rendered.exit_code == 0, rendered.output
    (cluster,) = [body for body in yaml.safe_load_all(rendered.stdout) if body["kind"] == "RayJob"]
    (group,) = cluster["spec"]["rayClusterSpec"]["workerGroupSpecs"]
    (container,) = group["template"]["spec"]["containers"]
    spec = load_job(path).job.spec
    assert group["replicas"] == spec.trainer.replicas
    assert int(container["resources"]["limits"]["nvidia.com/gpu"]) == spec.trainer.accelerator.count
    mounted = {
        volume.get("persistentVolumeClaim", {}).get("claimName") for volume in group["template"]["spec"]["volumes"]
    }
    assert spec.model.cache and {spec.model.cache.claim_name, spec.checkpoint.claim_name} <= mounted & CLAIMS


@pytest.mark.slow
@pytest.mark.usefixtures("_fit_in_this_process")
@pytest.mark.parametrize("name", FITTED)
def test_an_example_with_a_released_model_fits(name: str) -> None:
    job = str(ROOT / "examples" / f"{name}.yaml")
    fit = CliRunner().invoke(app, ["fit", job, "--device", "h100-80g", "--json"])
    assert fit.exit_code == 0, fit.output
    estimate = json.loads(fit.stdout)
    assert estimate["fits"] and estimate["host_fits"]
    judge = load_job(Path(job)).job.spec.reward.model
    assert estimate["not_estimated"] == (["spec.reward.model"] if judge else [])
    if name in TUTORIALS:
        assert_the_table_is_right((ROOT / "docs" / "start" / TUTORIALS[name]).read_text(encoding="utf-8"), estimate)


def assert_the_table_is_right(page: str, estimate: dict[str, Any]) -> None:
    """The page's estimate, rounded as the page has it."""
    rows = re.findall(r"^\| (generation|update|weight sync) \| ([\d.]+) \| ([\d.]*) ?\|$", page, re.MULTILINE)
    assert len(rows) == 3
    for phase, *cells in rows:
        for where, cell in zip(("device", "host"), cells, strict=True):
            sizes = [found["bytes"] / 2**30 for found in estimate[where] if found["name"] == phase]
            shown = f"{sizes[0]:.{len(cell.partition('.')[2])}f}" if cell else ""
            assert cell == shown, (phase, where)


def test_reserved_settings_exist_in_the_trainer() -> None:
    from verl_omni.settings_schema.declarations import FIELDS
    from verl_omni.trainer.settings import configuration

    required = ["data.train_files=t", "actor_rollout_ref.model.path=m", "trainer.total_training_steps=1"]
    config = configuration.load(required)
    missing = object()
    assert [name for name in FIELDS if OmegaConf.select(config, name, default=missing) is missing] == []

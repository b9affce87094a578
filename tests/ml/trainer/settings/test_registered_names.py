"""Model families and agent loops that are not registered are refused before a model is looked for."""

import sys
from pathlib import Path

import pytest

from tests.ml.smallest_job import load, refusal
from verl_omni.trainer import main_omni

MODEL = "actor_rollout_ref.model"
AGENT = "actor_rollout_ref.rollout.agent"


@pytest.mark.parametrize(
    ("path", "family"),
    [("ByteDance-Seed/BAGEL-7B-MoT", "BAGEL"), ("Lightricks/LTX-2", "LTX"), ("/models/MiniMax-H3", "MiniMax-H3")],
)
def test_a_family_of_the_reference_that_is_missing_is_refused_before_it_is_downloaded(path: str, family: str) -> None:
    message = refusal(f"{MODEL}.path={path}")
    assert (
        message.startswith(f"{MODEL}.path: the model family {family} is not supported; ") and "WanPipeline" in message
    )


@pytest.mark.parametrize(
    ("named", "own"),
    [
        (f"{MODEL}.architecture=MiniMaxH3Pipeline", "actor_rollout_ref.rollout.pipeline.aspect_ratio=16:9"),
        (f"{MODEL}.path=Lightricks/LTX-2", "actor_rollout_ref.rollout.pipeline.frame_rate=25.0"),
        (f"{AGENT}.default_agent_loop=ltx2_diffusion_single_turn_agent", "distillation.enabled=true"),
    ],
)
def test_a_missing_family_is_named_before_its_settings(named: str, own: str) -> None:
    """Otherwise the first message asks for another resolution, and says nothing of the family."""
    problems = [line.partition(":")[0] for line in refusal(own, named).splitlines()]
    assert problems == [named.partition("=")[0], own.partition("=")[0]]


def test_a_folder_may_be_called_like_a_missing_family(tmp_path: Path) -> None:
    (tmp_path / "LTX-like").mkdir()
    load(f"{MODEL}.path={tmp_path}/LTX-like")


def test_an_unknown_loop_is_refused_unless_a_file_or_a_module_may_have_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    named = f"{AGENT}.default_agent_loop=loop_of_a_test"
    assert refusal(named).startswith(f"{AGENT}.default_agent_loop: loop_of_a_test is not a supported agent loop; ")
    load(named, f"{AGENT}.agent_loop_config_path=loops.yaml")
    decorated = '@register("loop_of_a_test")\nclass Loop: ...\n'
    text = f"from verl.experimental.agent_loop.agent_loop import register\n\n\n{decorated}"
    (tmp_path / "module_of_a_test.py").write_text(text)
    monkeypatch.syspath_prepend(str(tmp_path))
    load(named, f"{MODEL}.external_lib=module_of_a_test")
    from verl.experimental.agent_loop.agent_loop import _agent_loop_registry

    del _agent_loop_registry["loop_of_a_test"], sys.modules["module_of_a_test"]


def test_the_entry_point_for_models_that_generate_tokens_says_what_is_missing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main_omni.main() == 2
    assert "models that generate tokens, such as Qwen3-Omni, are not trained" in capsys.readouterr().err

"""What the tests of `drl fit` share."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The configuration of a tiny Stable Diffusion 3, without weights."""
    from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

    folder = tmp_path_factory.mktemp("fit") / "model"
    make_tiny_sd3(folder)
    for weights in folder.rglob("*.safetensors"):
        weights.unlink()
    return folder

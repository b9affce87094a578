"""`model.external_lib`: modules that register something before the model is loaded."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from verl_omni.workers.config import DiffusionModelConfig

MODEL = Path(__file__).parents[4] / "examples" / "shapes-sd3"


def test_every_process_with_the_model_imports_the_external_modules(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    for name in ("external_one", "external_two"):
        (tmp_path / f"{name}.py").write_text("")
    DiffusionModelConfig(path=str(MODEL), external_lib="external_one")
    assert "external_one" in sys.modules
    assert "external_two" not in sys.modules
    DiffusionModelConfig(path=str(MODEL), external_lib=["external_one", "external_two"])
    assert "external_two" in sys.modules
    with pytest.raises(ModuleNotFoundError, match="no_such_library"):
        DiffusionModelConfig(path=str(MODEL), external_lib="no_such_library")

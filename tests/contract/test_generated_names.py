"""The operator's generated list of trainer settings is up to date."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools import setting_names

ROOT = Path(__file__).parents[2]


@pytest.mark.slow
def test_the_committed_names_are_those_of_the_trainer() -> None:
    assert setting_names.main(["--out", str(ROOT / setting_names.FILE), "--check"]) == 0


def test_a_stale_list_is_found_and_written_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "setting_names.json"
    assert setting_names.main(["--out", str(path)]) == 0
    path.write_text(path.read_text(encoding="utf-8").replace(" shuffle ", " "), encoding="utf-8")
    assert setting_names.main(["--out", str(path), "--check"]) == 1
    assert "make crds" in capsys.readouterr().err

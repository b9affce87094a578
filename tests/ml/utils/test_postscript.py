"""Images of data sets that are programs are refused, and not run."""

import io
from pathlib import Path

import datasets
import pytest
from PIL import EpsImagePlugin, Image

from tests.ml import smallest_job
from verl_omni.trainer.data import prompt_dataset, prompt_images
from verl_omni.utils.postscript import forbid_programs

PROGRAM = b"%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 8 8\n%%EndComments\nshowpage\n%%EOF\n"


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists if Ghostscript has run."""
    ghostscript = tmp_path / "bin" / "gs"
    ran = tmp_path / "ran"
    ghostscript.parent.mkdir()
    ghostscript.write_text(f'#!/bin/sh\necho "$@" >>{ran}\n')
    ghostscript.chmod(0o755)
    monkeypatch.setenv("PATH", str(ghostscript.parent), prepend=":")
    monkeypatch.setattr(EpsImagePlugin, "gs_binary", None)  # Pillow looks for it once
    return ran


def test_pillow_would_run_it(ran: Path) -> None:
    with pytest.raises(OSError, match=r"truncated|cannot identify"):  # this one makes no image
        Image.open(io.BytesIO(PROGRAM)).load()
    assert "-dSAFER" in ran.read_text()


def test_a_program_is_refused_whatever_its_name(ran: Path, tmp_path: Path) -> None:
    (tmp_path / "photo.png").write_bytes(PROGRAM)
    for image in ("photo.png", PROGRAM, {"bytes": PROGRAM}, Image.open(io.BytesIO(PROGRAM))):
        with pytest.raises(prompt_images.ImageNotFound, match=r"PostScript, a program .*: convert it to PNG"):
            prompt_images.open_image(image, tmp_path).convert("RGB")
    assert not ran.exists()


def test_images_that_datasets_open_are_not_run(ran: Path, tmp_path: Path) -> None:
    features = datasets.Features({"prompt": datasets.Value("string"), "images": [datasets.Image()]})
    rows = [{"prompt": "a", "images": [{"bytes": PROGRAM, "path": None}]}]
    datasets.Dataset.from_list(rows, features=features).to_parquet(tmp_path / "rows.parquet")
    config = smallest_job.load(f"data.cache_dir='{tmp_path}'").data
    loaded = prompt_dataset.load(str(tmp_path / "rows.parquet"), config, None)
    with pytest.raises(OSError, match="Ghostscript"):
        loaded.dataframe[0]
    assert not ran.exists()


def test_an_image_of_a_request_is_not_run(ran: Path) -> None:
    forbid_programs()
    with pytest.raises(OSError, match="Ghostscript"):
        Image.open(io.BytesIO(PROGRAM)).convert("RGB")
    assert not ran.exists()

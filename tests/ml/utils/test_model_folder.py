"""The model as a path, or as the name of a repository in the local hub cache."""

from pathlib import Path
from typing import Any

import huggingface_hub
import pytest
from huggingface_hub import constants
from huggingface_hub.errors import LocalEntryNotFoundError

from verl_omni.utils.model_folder import model_folder

SETTING = "actor_rollout_ref.model.path"
COMMIT = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache with the repository `Qwen/Qwen-Image`, as `hf download` lays it out."""
    repository = tmp_path / "hub" / "models--Qwen--Qwen-Image"
    (repository / "refs").mkdir(parents=True)
    (repository / "refs" / "main").write_text(COMMIT)
    (repository / "snapshots" / COMMIT).mkdir(parents=True)
    (repository / "snapshots" / COMMIT / "model_index.json").write_text("{}")
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", True)
    return tmp_path / "hub"


def test_a_repository_is_found_in_the_local_cache(cache: Path) -> None:
    assert model_folder("Qwen/Qwen-Image", SETTING) == cache / "models--Qwen--Qwen-Image" / "snapshots" / COMMIT


def test_a_folder_comes_before_a_repository_of_its_name(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "Qwen" / "Qwen-Image").mkdir(parents=True)
    assert model_folder("Qwen/Qwen-Image", SETTING) == Path("Qwen/Qwen-Image")
    assert model_folder("/missing/a/b", SETTING) == Path("/missing/a/b"), "a path of more parts is no repository"


def test_a_missing_repository_says_how_to_get_it(cache: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        model_folder("stabilityai/stable-diffusion-3.5-medium", SETTING)
    assert str(caught.value) == (
        "actor_rollout_ref.model.path: stabilityai/stable-diffusion-3.5-medium is no folder, and not in the hub cache "
        f"{cache}: run `hf download stabilityai/stable-diffusion-3.5-medium` where there is a network, or set "
        "HF_HUB_OFFLINE=0"
    )


def test_online_it_is_downloaded_into_the_cache(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[dict[str, Any]] = []

    def download(repository: str, **options: Any) -> str:
        asked.append({"repository": repository, **options})
        if repository == "a/b":
            raise LocalEntryNotFoundError("no network")
        return str(cache / "downloaded")

    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    assert model_folder("x/y", SETTING) == cache / "downloaded"
    assert asked == [{"repository": "x/y", "cache_dir": str(cache), "local_files_only": False}]
    with pytest.raises(FileNotFoundError, match=r"run `hf download a/b` where there is a network$"):
        model_folder("a/b", SETTING)

"""The folder of a model: given as a path, or as the name of a repository of the Hugging Face hub."""

import json
import re
from pathlib import Path
from typing import Any

PROCESSOR_CONFIGS = ("preprocessor_config.json", "processor_config.json")  # name in older and in newer releases
# parts of a diffusers pipeline
INDEX = "model_index.json"
SECOND_TRANSFORMER = "transformer_2"
_REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


def model_folder(path: str, setting: str) -> Path:
    """The local folder of a model.

    A path that exists is that folder. Otherwise `owner/name` is looked up in the local hub cache, and downloaded into
    it if `HF_HUB_OFFLINE` is 0.

    Args:
        setting: where `path` was given, for the message of an error.

    Raises:
        FileNotFoundError: there is no such folder, and it is no repository, or one that can neither be found nor
            downloaded.
    """
    folder = Path(path)
    if folder.exists() or not _REPOSITORY.fullmatch(path):
        return folder
    from huggingface_hub import constants, snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, LocalEntryNotFoundError, RepositoryNotFoundError

    offline = constants.HF_HUB_OFFLINE
    try:
        return Path(snapshot_download(path, cache_dir=constants.HF_HUB_CACHE, local_files_only=offline))
    except RepositoryNotFoundError as error:
        raise FileNotFoundError(f"{setting}: neither a folder nor a repository of the hub: {path}") from error
    except (LocalEntryNotFoundError, HfHubHTTPError, OSError) as error:
        advice = f"run `hf download {path}` where there is a network" + (", or set HF_HUB_OFFLINE=0" if offline else "")
        raise FileNotFoundError(
            f"{setting}: {path} is no folder, and not in the hub cache {constants.HF_HUB_CACHE}: {advice}"
        ) from error


def boundary_ratio(folder: Path) -> float | None:
    """Share of the noise levels below which a model's second transformer computes; None: it has one transformer.

    Raises:
        ValueError: it has two, and no ratio between 0 and 1.
    """
    index = json.loads((folder / INDEX).read_text(encoding="utf-8"))
    if (index.get(SECOND_TRANSFORMER) or [None])[0] is None:
        return None
    ratio = index.get("boundary_ratio")
    if not isinstance(ratio, (int, float)) or not 0 < ratio < 1:
        raise ValueError(
            f"{folder / INDEX}: a model with {SECOND_TRANSFORMER} needs a boundary_ratio between 0 and 1, the share of "
            f"the noise levels below which that transformer computes, and it is {ratio}; write the released one"
        )
    return float(ratio)


def processor_config(folder: Path) -> dict[str, Any] | None:
    """Configuration of a model's processor of images; None: it has none."""
    configs = [path for name in PROCESSOR_CONFIGS if (path := folder / "processor" / name).is_file()]
    if not configs:
        return None
    read: dict[str, Any] = json.loads(configs[0].read_text(encoding="utf-8"))
    return read

"""Inputs in S3-compatible stores: copied to this machine before anything reads them."""

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf

from verl_omni.utils.stores import Access, Store, download

PREFIX = "s3://"
FILES = ("data.train_files", "data.val_files")


def access(config: DictConfig) -> Access:
    """Access to S3, from the settings."""
    return Access(config.trainer.store.endpoint, config.trainer.store.region)


def fetch(config: DictConfig, cache: Path, say: Callable[[str], None]) -> None:
    """Replace `s3://` URLs of data and model by paths of copies.

    A copy is kept in `cache`, under a name that changes with the objects in the store.

    Raises:
        StoreError: there is nothing at a URL, or the store does not give it. ValueError: this run cannot use a copy.
    """
    for setting in FILES:
        value = OmegaConf.select(config, setting)
        paths = list(value) if OmegaConf.is_list(value) else [value]
        if any(map(_in_store, paths)):
            if config.algorithm.sample_source == "offline":
                raise ValueError(
                    f"{setting}: {paths[0]} is in a store, and algorithm.sample_source=offline reads images next to "
                    "the file: mount or copy the folder, and write its path"
                )
            OmegaConf.update(config, setting, [_copy(path, config, cache, say) for path in paths])
    model = config.actor_rollout_ref.model
    if _in_store(model.path):
        if config.trainer.nnodes > 1 or config.actor_rollout_ref.rollout.nnodes:
            raise ValueError(
                f"actor_rollout_ref.model.path: {model.path} is in a store, and this run has several nodes: download "
                "it on each (python3 -m verl_omni.utils.stores download URL FOLDER), and write the folder"
            )
        model.path = _copy(model.path, config, cache, say)


def in_store(config: DictConfig) -> bool:
    """Whether data or model are in an S3-compatible store; before `fetch`."""
    values = [OmegaConf.select(config, name) for name in (*FILES, "actor_rollout_ref.model.path")]
    return any(_in_store(path) for value in values for path in (value if OmegaConf.is_list(value) else [value]))


def _in_store(path: Any) -> bool:
    return isinstance(path, str) and path.startswith(PREFIX)


def _copy(url: str, config: DictConfig, cache: Path, say: Callable[[str], None]) -> str:
    """The path of a copy; `url` itself if it is a path."""
    if not _in_store(url):
        return url
    where = access(config)
    store = Store(url, where)
    objects = store.objects()
    digest = hashlib.sha256(repr((url, where.endpoint, objects)).encode()).hexdigest()[:16]
    target = cache / digest / url.rstrip("/").rpartition("/")[2]
    say(f"reading {url} ({sum(listed.size for listed in objects):,} bytes)")
    is_file = [listed.name for listed in objects] == [""]
    download(url.rstrip("/"), target.parent if is_file else target, where)
    return str(target)

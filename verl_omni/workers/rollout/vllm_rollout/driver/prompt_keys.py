"""PURE: keys of what a request's prompt embeddings are a function of."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any

MEDIA = ("image_data", "video_data", "audio_data")
PER_SAMPLE = frozenset({"request_id", "sampling_params", "priority"})  # arguments of `generate` that are no prompt


def prompt_keys(arguments: Mapping[str, Any]) -> tuple[str, str] | None:
    """Keys of the prompt and of the negative prompt; None for prompts with images, videos or audio.

    Requests with the same key have the same embeddings. The key covers all sampling parameters but the seed, because
    they decide how long embeddings are and whether there are negative ones.

    Args:
        arguments: those of `vLLMOmniHttpServer.generate`.
    """
    if any(arguments.get(name) is not None for name in MEDIA):
        return None
    params = {name: value for name, value in (arguments.get("sampling_params") or {}).items() if name != "seed"}
    given = {name: value for name, value in arguments.items() if name not in PER_SAMPLE and value is not None}
    negative = {name: value for name, value in given.items() if name.startswith("negative")}
    positive = {name: value for name, value in given.items() if name not in negative}
    return _digest("prompt", positive, params), _digest("negative", negative, params)


def _digest(*parts: Any) -> str:
    # Values that are no JSON have a representation of their own, so their requests share nothing.
    text = json.dumps(parts, sort_keys=True, default=repr)
    return hashlib.blake2b(text.encode(), digest_size=16).hexdigest()

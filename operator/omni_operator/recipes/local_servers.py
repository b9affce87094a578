"""PURE: servers of a job that are reached only from the machine that they run on."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

_LOCAL = re.compile(r"https?://(?:localhost|127(?:\.\d{1,3}){3}|0\.0\.0\.0|\[::1\])(?=[:/\"])[^\s\"]*", re.IGNORECASE)


def local_urls(document: Mapping[str, Any]) -> tuple[str, ...]:
    """URLs of this machine in a job, each once; on a cluster, they would be those of each pod."""
    return tuple(dict.fromkeys(_LOCAL.findall(json.dumps(document))))

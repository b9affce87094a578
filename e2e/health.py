"""Health of jobs as Flux, Helm 4 and Argo CD see it, by a program that is built like the others of a test cluster."""

import json
import subprocess
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

from ruamel.yaml import YAML

from e2e.cluster import deadlines
from e2e.cluster.tools import HEALTH, ensure

PAGE = Path(__file__).resolve().parents[1] / "docs" / "operate" / "install.md"
SETTING = "resource.customizations.health.diffusionrl.io_DiffusionRLJob"


class Health(NamedTuple):
    """Status by kstatus, and by the health script for Argo CD, each with its message."""

    kstatus: str
    kstatus_message: str
    argo: str
    argo_message: str


def argo_script() -> str:
    """The health script of the documentation, in Lua."""
    blocks = (block.partition("```")[0] for block in PAGE.read_text(encoding="utf-8").split("```yaml\n")[1:])
    settings = (YAML(typ="safe").load(block).get("data") or {} for block in blocks)
    return next(str(config_map[SETTING]) for config_map in settings if SETTING in config_map)


def find_health(bodies: Iterable[dict[str, Any]]) -> list[Health]:
    """Health of each object.

    Raises:
        ToolMissing: the program has to be built, and there is no Go.
        CalledProcessError: the script, or an object, is invalid.
    """
    program = ensure((HEALTH,)).path(HEALTH)
    with tempfile.NamedTemporaryFile("w", suffix=".lua", encoding="utf-8") as script:
        script.write(argo_script())
        script.flush()
        answer = subprocess.run(
            [program, script.name],
            input="".join(f"{json.dumps(body)}\n" for body in bodies),
            stdout=subprocess.PIPE,
            text=True,
            check=True,
            timeout=deadlines.COMMAND,
        )
    results = (json.loads(line) for line in answer.stdout.splitlines())
    return [
        Health(*(result[tool][part] for tool in ("kstatus", "argo") for part in ("status", "message")))
        for result in results
    ]

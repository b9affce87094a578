"""An exec plug-in of a kubeconfig: a script that prints an ExecCredential, like the EKS, GKE and OIDC plug-ins."""

import json
import textwrap
from pathlib import Path
from typing import Any

API_VERSION = "client.authentication.k8s.io/v1"
SCRIPT = textwrap.dedent("""\
    #!/bin/sh
    # Counts its runs, and prints the file next to it; without one it fails.
    echo run >> "$0.runs"
    test -s "$0.answer" || { echo 'the login has expired' >&2; exit 1; }
    expires=$(date -u -d "$(cat "$0.lives") seconds" +%Y-%m-%dT%H:%M:%SZ)
    sed "s/EXPIRES/$expires/" "$0.answer"
    """)


class ExecPlugin:
    """A plug-in in a folder that prints a given ExecCredential."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / "plugin"
        self.path.write_text(SCRIPT)
        self.path.chmod(0o755)
        self.path.with_suffix(".lives").write_text("0")

    @property
    def user(self) -> dict[str, Any]:
        """The user section of a kubeconfig."""
        command = {"apiVersion": API_VERSION, "command": str(self.path), "env": None, "interactiveMode": "Never"}
        return {"exec": command}

    @property
    def runs(self) -> int:
        """How often it was run."""
        log = self.path.with_suffix(".runs")
        return len(log.read_text().splitlines()) if log.exists() else 0

    def print_token(self, token: str, lives: int | None = None) -> None:
        """Print a token from now on, which expires `lives` seconds after each run; None: it does not say when."""
        self.path.with_suffix(".lives").write_text(str(lives or 0))
        self.print_status({"token": token, **({"expirationTimestamp": "EXPIRES"} if lives is not None else {})})

    def print_status(self, status: dict[str, Any]) -> None:
        """Print an ExecCredential with this status from now on."""
        body = {"apiVersion": API_VERSION, "kind": "ExecCredential", "status": status}
        self.path.with_suffix(".answer").write_text(json.dumps(body))

    def fail(self) -> None:
        """Fail from now on."""
        self.path.with_suffix(".answer").write_text("")

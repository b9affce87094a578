"""The CRD as committed files: `crds/`, and a copy in the chart, which Helm installs."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from omni_operator.api.crd import definition
from tools.generated_file import write_or_check

FOLDERS = (Path("crds"), Path("charts/omni-operator/files"))


def main(arguments: Sequence[str] | None = None, folder: Path = FOLDERS[0]) -> int:
    """Write or check the file in `folder`. Returns the exit code."""
    file = folder / definition.FILE
    return write_or_check(arguments, file, lambda _: definition.text(), stale="does not match the models")


def main_of_chart(arguments: Sequence[str] | None = None) -> int:
    """The same for the chart's copy."""
    return main(arguments, FOLDERS[1])


if __name__ == "__main__":
    sys.exit(main())

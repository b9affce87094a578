"""The CRD as committed files: `crds/`, and a copy in the chart, which Helm installs."""

from pathlib import Path

from omni_operator.api.crd import definition

FOLDERS = (Path("crds"), Path("charts/omni-operator/files"))


def generated() -> dict[Path, str]:
    """The same text in each folder."""
    return {folder / definition.FILE: definition.text() for folder in FOLDERS}

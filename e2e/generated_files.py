"""Write every generated file, or check all of them: `python -m e2e.generated_files [--check]`.

One process, because each generator of its own imports the models of jobs or the trainer's settings again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from e2e import chart_values, job_page, metrics_page, python_page, troubleshooting_page
from omni_operator.api import crd
from verl_omni.trainer import other_defaults, setting_names, settings_page

# (program, arguments); Helm installs the chart's own copy of the CRD.
GENERATORS: tuple[tuple[Callable[[Sequence[str]], int], tuple[str, ...]], ...] = (
    (crd.main, ()),
    (crd.main, ("--out", "charts/omni-operator/files")),
    (chart_values.main, ()),
    (job_page.main, ()),
    (troubleshooting_page.main, ()),
    (setting_names.main, ()),
    (settings_page.main, ()),
    (other_defaults.main, ()),
    (metrics_page.main, ()),
    (python_page.main, ()),
)


def main(arguments: Sequence[str]) -> int:
    """Run every generator with `arguments`; the highest exit code."""
    return max(generator([*own, *arguments]) for generator, own in GENERATORS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

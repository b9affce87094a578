"""Write every generated file, or check all of them: `python -m tools.generated_files [--check]`.

One process, because each generator of its own imports the models of jobs or the trainer's settings again.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

from e2e import chart_values
from tools import (
    algorithms_table,
    crd_file,
    families_table,
    init_jobs,
    job_page,
    metrics_page,
    other_defaults,
    proof_table,
    scorers_table,
    settings_page,
    troubleshooting_page,
)

GENERATORS: tuple[Callable[[Sequence[str]], int], ...] = (
    crd_file.main,
    crd_file.main_of_chart,
    chart_values.main,
    job_page.main,
    troubleshooting_page.main,
    settings_page.main,
    other_defaults.main,
    metrics_page.main,
    scorers_table.main,
    algorithms_table.main,
    families_table.main,
    proof_table.main,
    init_jobs.main,
)


def main(arguments: Sequence[str]) -> int:
    """Run every generator with `arguments`; the highest exit code."""
    return max(generator(arguments) for generator in GENERATORS)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

"""Write every generated file, or check all of them: `python -m tools.generated_files [--check]`."""

import argparse
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

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
from tools.generated_file import stale, write

GENERATORS: tuple[Callable[[], dict[Path, str]], ...] = (
    crd_file.generated,
    chart_values.generated,
    job_page.generated,
    troubleshooting_page.generated,
    settings_page.generated,
    metrics_page.generated,
    scorers_table.generated,
    algorithms_table.generated,
    families_table.generated,
    proof_table.generated,
    init_jobs.generated,
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the files, or with `--check` write nothing and name stale ones. Returns the exit code."""
    parser = argparse.ArgumentParser(description="Write the files that are generated from the code.")
    parser.add_argument("--check", action="store_true", help="write nothing; fail where a file is stale")
    options = parser.parse_args(arguments)
    other_defaults.check(other_defaults.find(), other_defaults.reasons())
    files = {path: text for generator in GENERATORS for path, text in generator().items()}
    if not options.check:
        write(files)
        return 0
    stale_paths = stale(files)
    for path in stale_paths:
        sys.stderr.write(f"{path} is not what the code says: run `make crds` and commit it\n")
    return 1 if stale_paths else 0


if __name__ == "__main__":
    sys.exit(main())

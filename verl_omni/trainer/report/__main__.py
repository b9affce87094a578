"""`python -m verl_omni.trainer.report RUN`: write report.html of a run folder."""

from __future__ import annotations

import sys
from pathlib import Path

from verl_omni.trainer.report import write

if __name__ == "__main__":
    if len(sys.argv) != 2 or not Path(sys.argv[1]).is_dir():
        sys.exit("usage: python -m verl_omni.trainer.report RUN_FOLDER")
    print(write(Path(sys.argv[1])))

"""Entry point `python3 -m verl_omni.trainer.main_diffusion_v1 ...`: the trainer with `trainer.use_v1=true`."""

import sys
from collections.abc import Sequence

from verl_omni.trainer import main_diffusion


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a training job. Returns the exit code of `main_diffusion`."""
    return main_diffusion.main(["trainer.use_v1=true", *(sys.argv[1:] if arguments is None else arguments)])


if __name__ == "__main__":
    sys.exit(main())

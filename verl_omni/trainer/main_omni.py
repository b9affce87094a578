"""The reference's entry point for models that generate tokens: `python3 -m verl_omni.trainer.main_omni` says so."""

import sys

from verl_omni.trainer.main_diffusion import USAGE_ERROR

TEXT = (
    "verl_omni.trainer.main_omni does not exist here: models that generate tokens, such as Qwen3-Omni, are not "
    "trained; verl_omni.trainer.main_diffusion trains diffusion models (docs/reference/model-families.md)"
)


def main() -> int:
    """Print what is missing. Returns the exit code."""
    sys.stderr.write(f"{TEXT}\n")
    return USAGE_ERROR


if __name__ == "__main__":
    sys.exit(main())

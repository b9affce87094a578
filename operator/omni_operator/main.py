"""Entry point of the operator, `python -m omni_operator.main`.

Settings are environment variables (docs/operate/operator.md).
"""

from __future__ import annotations

import sys

from omni_operator.operation import run_operator


def main() -> int:
    """Run until stopped. Return 0, or 2 if credentials or settings are invalid."""
    return run_operator()


if __name__ == "__main__":
    sys.exit(main())

"""Generator of `docs/troubleshooting.md` from the explanations of conditions and reasons.

python -m omni_operator.status.troubleshooting --out docs/troubleshooting.md [--check]
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

from omni_operator.api.generated_file import write_or_check

from .explained_reasons import FAILURES, WAITING, WARNINGS
from .explanations import CONDITIONS, Explanation
from .normal_reasons import NORMAL

INTRODUCTION = """\
# Troubleshooting

<!-- Generated from operator/omni_operator/status/explained_reasons.py by `make crds`; do not edit. -->

For users whose job does not do what they expect: every condition and every reason that the operator writes, what it
means, how to look closer and what to do. In the commands, NAME is the name of the job.

Start with

```sh
drl why NAME                          # what holds the job, since when, and what to do
kubectl get drl NAME --output=yaml    # conditions, failures and warnings
kubectl events --for=diffusionrljob/NAME
drl logs NAME                         # output of its pods
```

and search this page for the reason. A job without conditions was not seen by an operator: check that the operator runs
and watches its namespace ([install.md](install.md)). Faults of the cluster and of the operator itself are in
[failure-modes.md](failure-modes.md), problems of a run without a cluster in `drl doctor`.
"""
SECTIONS = (
    ("The job waits", "The job continues by itself when the cause is gone.", WAITING),
    (
        "An attempt failed",
        "`spec.failurePolicy` decides whether another attempt follows. After the last one, the condition `Failed` has "
        "the reason.",
        FAILURES,
    ),
    ("The job runs with a warning", "The operator does not stop a job for these.", WARNINGS),
)
PLACES = {
    "failure": "`status.failures`",
    "event": "an event",
    "warning": "`status.warnings`",
}


def text() -> str:
    """Text of the page."""
    parts = [INTRODUCTION, "## Conditions\n", _conditions()]
    for title, introduction, reasons in SECTIONS:
        parts += [f"## {title}\n", f"{introduction}\n", *_sections(reasons)]
    parts += ["## Nothing is wrong\n", _table(NORMAL)]
    return "\n".join(parts)


def _conditions() -> str:
    lines = ["| condition | while nothing is wrong | meaning of True |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {found.wanted} | {found.meaning} |" for name, found in CONDITIONS.items()]
    return "\n".join(lines) + "\n"


def _sections(reasons: Mapping[str, Explanation]) -> Iterator[str]:
    for name, found in sorted(reasons.items()):
        yield f"### {name}\n"
        yield f"{found.meaning}\n"
        yield f"- Shown by: {_shown(found)}\n- Look closer: `{found.look}`\n- What to do: {found.action}\n"


def _table(reasons: Mapping[str, Explanation]) -> str:
    lines = ["| reason | shown by | meaning |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {_shown(found)} | {found.meaning} |" for name, found in sorted(reasons.items())]
    return "\n".join(lines) + "\n"


def _shown(found: Explanation) -> str:
    return ", ".join(PLACES.get(place, f"`{place}`") for place in found.shown)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write or check the page. Returns the exit code."""
    return write_or_check(
        arguments, program="omni_operator.status.troubleshooting",
        description="Write the page of conditions and reasons.", default=Path("docs/troubleshooting.md"), render=text,
        stale="does not match the explanations",
    )  # fmt: skip


if __name__ == "__main__":
    sys.exit(main())

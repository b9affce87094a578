"""Generator of `docs/operate/troubleshooting.md` from the table of reasons."""

from collections.abc import Iterator, Mapping
from pathlib import Path

from omni_operator.status.reasons.names import Reason
from omni_operator.status.reasons.problems import FAILURES, WAITING, WARNINGS
from omni_operator.status.reasons.table import CONDITIONS, NORMAL

INTRODUCTION = """\
# Troubleshooting

<!-- Generated from operator/omni_operator/status/reasons by `make crds`; do not edit. -->

For users whose job does not do what they expect: every condition and every reason that the operator writes, what it
means, how to look closer and what to do. In the commands, NAME is the name of the job.

Start with

```sh
drl why NAME                          # what holds the job, since when, and what to do
kubectl get drl NAME --output=yaml    # conditions, failures and warnings
kubectl events --for=diffusionrljob/NAME
drl logs NAME                         # its output
```

and search this page for the reason. A job without conditions was not seen by an operator: check that the operator runs
and watches its namespace ([install.md](install.md)). Faults of the cluster and of the operator itself are in
[failure modes](../contribute/evidence.md). For `drl run`, see [A run on one machine](#a-run-on-one-machine).
"""
ON_ONE_MACHINE = """\
## A run on one machine

`drl doctor` finds what is missing. When `drl run` fails, its last line is the cause, and the line above it names
`train.log`, which has the traceback.

| message | what to do |
| --- | --- |
"""
# Parts of messages of `drl run` and the trainer, and what to do.
MESSAGES = {
    "not installed:": "`make setup` in a clone of the repository; `drl` of `.venv/bin` has the training stack "
    "([cli.md](../reference/cli.md#install))",
    "is a model id, which only the operator downloads": "`hf download OWNER/NAME --local-dir FOLDER`, and write "
    "`./FOLDER` into the job",
    "this job is already running": "wait for that run or stop it, or change `metadata.name`",
    "holds a run of a different job": "change `metadata.name`, or `drl run --fresh JOB.yaml`, which keeps the earlier "
    "folder under another name",
    "is already finished": "raise `totalSteps` to continue, or `drl run --fresh JOB.yaml`",
    "usually because the machine ran out of memory": "`drl fit JOB.yaml` says what takes it, and which settings lower "
    "it",
    "velocities of engine and trainer differ": "with a family of your own, compare what "
    "[own-family.md](../guides/own-family.md#5-train) lists",
}
SYMPTOMS = """
Minutes until the first step are normal for large models: startup prints what it is waiting for, and `train.log` has
more. If the reward does not rise, look at the samples of `report.html` first, then at `reward/std` (0: nothing to
compare) and `actor/grad_norm` ([metrics](../guides/results.md#metrics)).
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
    parts += ["## Nothing is wrong\n", _list(NORMAL), _on_one_machine()]
    return "\n".join(parts)


def _conditions() -> str:
    lines = ["| condition | while nothing is wrong | meaning of True |", "| --- | --- | --- |"]
    lines += [f"| `{name}` | {condition.wanted} | {condition.meaning} |" for name, condition in CONDITIONS.items()]
    return "\n".join(lines) + "\n"


def _sections(reasons: Mapping[str, Reason]) -> Iterator[str]:
    for name, reason in sorted(reasons.items()):
        yield f"### {name}\n"
        yield f"{reason.meaning}\n"
        yield f"{reason.action}\n"
        yield f"`{reason.look}` (shown by {_shown(reason)})\n"


def _list(reasons: Mapping[str, Reason]) -> str:
    return "".join(f"- `{name}` ({_shown(reason)}): {reason.meaning}\n" for name, reason in sorted(reasons.items()))


def _on_one_machine() -> str:
    return ON_ONE_MACHINE + "".join(f"| `{part}` | {action} |\n" for part, action in MESSAGES.items()) + SYMPTOMS


def _shown(reason: Reason) -> str:
    return ", ".join(PLACES.get(shown_in, f"`{shown_in}`") for shown_in in reason.shown)


def generated() -> dict[Path, str]:
    """The page."""
    return {Path("docs/operate/troubleshooting.md"): text()}

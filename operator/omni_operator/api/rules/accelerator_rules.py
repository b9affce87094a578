"""PURE: rules about the accelerators of trainer, engines and judge, and about what is divided among them."""

from __future__ import annotations

from collections.abc import Iterator

from omni_operator.api.base import Cel, Violation
from omni_operator.api.spec.judge import JudgeModel
from omni_operator.api.spec.platform import Security
from omni_operator.api.spec.pods import Accelerator
from omni_operator.api.spec.rollout import Rollout
from omni_operator.api.spec.training import Trainer

VENDORS = ("NVIDIA", "Ascend")  # vendors whose accelerators may be combined in a job
ENGINES = (
    "must be all accelerators of the trainer (spec.trainer.replicas x spec.trainer.accelerator.count) divided by "
    "spec.rollout.engine.tensorParallelSize: engines and trainer share them"
)
ENGINE_IN_POD = "must divide the accelerators of a rollout pod, because those of an engine must be in one pod"
NOT_WITH_TRAINER = (
    "must be that of spec.trainer.accelerator, or NVIDIA next to Ascend: all pools compute on accelerators, or all on "
    "the CPU"
)
TOKEN_NEEDED = "must be Token with spec.rollout.placement Separate: trainer and replicas prove by it who they are"
JUDGE_IN_POD = "must divide the accelerators of a reward pod, because those of a replica must be in one pod"
JUDGE_ON_ALL = "must divide all accelerators of the trainer, which the judge uses with placement Colocated"
JUDGE_AHEAD = "must be Separate with spec.rollout.batchesAhead: the trainer is busy while samples are scored"
UNEVEN = "x spec.rollout.samplesPerPrompt must be a multiple of"
ACCELERATORS = "self.trainer.replicas * self.trainer.accelerator.count"
_SAMPLES = "(self.trainer.batch.prompts * self.rollout.samplesPerPrompt)"


def _fits_trainer(pool: str) -> str:
    """CEL: the vendor of a pool's accelerator may be combined with the trainer's."""
    accelerator = f"{pool}.accelerator"
    trainer = "self.trainer.accelerator"
    vendors = list(VENDORS)
    return (
        f"(has({accelerator}.vendor) == has({trainer}.vendor) && (!has({trainer}.vendor) || "
        f"{accelerator}.vendor == {trainer}.vendor || "
        f"({accelerator}.vendor in {vendors} && {trainer}.vendor in {vendors})))"
    )


ACCELERATOR_RULES = (
    Cel(
        "self.rollout.placement == 'Separate' || "
        f"self.rollout.replicas * self.rollout.engine.tensorParallelSize == {ACCELERATORS}",
        ENGINES,
        ".rollout.replicas",
    ),
    Cel(
        "self.rollout.placement != 'Separate' || (has(self.rollout.accelerator) ? self.rollout.accelerator.count "
        ": self.trainer.accelerator.count) % self.rollout.engine.tensorParallelSize == 0",
        ENGINE_IN_POD,
        ".rollout.engine.tensorParallelSize",
    ),
    Cel(
        f"self.rollout.placement != 'Separate' || !has(self.rollout.accelerator) || {_fits_trainer('self.rollout')}",
        NOT_WITH_TRAINER,
        ".rollout.accelerator",
    ),
    Cel("self.rollout.placement != 'Separate' || self.security.rayAuth == 'Token'", TOKEN_NEEDED, ".security.rayAuth"),
    Cel(
        "!has(self.reward.model) || self.reward.model.placement != 'Colocated' || "
        f"({ACCELERATORS}) % self.reward.model.tensorParallelSize == 0",
        JUDGE_ON_ALL,
        ".reward.model.tensorParallelSize",
    ),
    Cel(
        "!has(self.reward.model) || self.reward.model.placement != 'Separate' || "
        "(has(self.reward.model.accelerator) ? self.reward.model.accelerator.count "
        ": self.trainer.accelerator.count) % self.reward.model.tensorParallelSize == 0",
        JUDGE_IN_POD,
        ".reward.model.tensorParallelSize",
    ),
    Cel(
        "!has(self.reward.model) || self.reward.model.placement == 'Separate' || self.rollout.batchesAhead == 0",
        JUDGE_AHEAD,
        ".reward.model.placement",
    ),
    Cel(
        f"!has(self.reward.model) || !has(self.reward.model.accelerator) || {_fits_trainer('self.reward.model')}",
        NOT_WITH_TRAINER,
        ".reward.model.accelerator",
    ),
    Cel(f"{_SAMPLES} % ({ACCELERATORS}) == 0", f"{UNEVEN} the number of accelerators", ".trainer.batch.prompts"),
    Cel(
        f"!has(self.rollout.agentLoop.workers) || {_SAMPLES} % self.rollout.agentLoop.workers == 0",
        f"{UNEVEN} spec.rollout.agentLoop.workers",
        ".trainer.batch.prompts",
    ),
)


def accelerator_violations(
    trainer: Trainer, rollout: Rollout, judge: JudgeModel | None, security: Security
) -> Iterator[Violation]:
    """The rules that the parts of a spec violate."""
    if rollout.separate:
        yield from _rollout_pods(trainer.accelerator, rollout, security)
    elif rollout.replicas * rollout.engine.tensor_parallel_size != trainer.accelerators:
        yield Violation(
            ("rollout", "replicas"),
            f"is {rollout.replicas}: {ENGINES} ({trainer.accelerators} / {rollout.engine.tensor_parallel_size})",
        )
    samples = trainer.batch.prompts * rollout.samples_per_prompt
    workers = rollout.agent_loop.workers or 1
    for parts, what in (
        (trainer.accelerators, "the number of accelerators"),
        (workers, "spec.rollout.agentLoop.workers"),
    ):
        if samples % parts:
            yield Violation(("trainer", "batch", "prompts"), f"{UNEVEN} {what}: {samples} is not a multiple of {parts}")
    if judge is not None:
        yield from _judge(trainer, judge)
        if not judge.separate and rollout.batches_ahead:
            yield Violation(("reward", "model", "placement"), f"is Colocated: {JUDGE_AHEAD}")


def _rollout_pods(trainer: Accelerator, rollout: Rollout, security: Security) -> Iterator[Violation]:
    parallel = rollout.engine.tensor_parallel_size
    device = rollout.accelerator or trainer
    if device.count % parallel:
        yield Violation(("rollout", "engine", "tensorParallelSize"), f"is {parallel}: {ENGINE_IN_POD} ({device.count})")
    yield from _vendor(("rollout", "accelerator", "vendor"), device, trainer)
    if security.ray_auth != "Token":
        yield Violation(("security", "rayAuth"), TOKEN_NEEDED)


def _judge(trainer: Trainer, judge: JudgeModel) -> Iterator[Violation]:
    at = ("reward", "model")
    device = judge.accelerator or trainer.accelerator
    count, text = (device.count, JUDGE_IN_POD) if judge.separate else (trainer.accelerators, JUDGE_ON_ALL)
    if count % judge.tensor_parallel_size:
        yield Violation((*at, "tensorParallelSize"), f"is {judge.tensor_parallel_size}: {text} ({count})")
    yield from _vendor((*at, "accelerator", "vendor"), device, trainer.accelerator)


def _vendor(at: tuple[str, ...], device: Accelerator, trainer: Accelerator) -> Iterator[Violation]:
    if device.vendor != trainer.vendor and not {device.vendor, trainer.vendor} <= set(VENDORS):
        vendor = device.vendor or "not given"
        other = trainer.vendor or "not given"
        yield Violation(at, f"is {vendor}: {NOT_WITH_TRAINER} ({other})")

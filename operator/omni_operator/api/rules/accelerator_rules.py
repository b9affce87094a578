"""PURE: rules about the accelerators of trainer, engines and judge, and about what is divided among them."""

from omni_operator.api.base import Rule

VENDORS = ("NVIDIA", "Ascend")  # vendors whose accelerators may be combined in a job
ENGINES = (
    "must be all accelerators of the trainer (spec.trainer.replicas x spec.trainer.accelerator.count) divided by "
    "spec.rollout.engine.tensorParallelSize: engines and trainer share them"
)
ENGINE_IN_POD = "must divide the accelerators of a rollout pod, because an engine's accelerators must be in one pod"
NOT_WITH_TRAINER = (
    "must be the vendor of spec.trainer.accelerator, or NVIDIA next to Ascend: all pools compute on accelerators, or "
    "all on the CPU"
)
SCORER_VENDOR = (
    "a pool's accelerator.vendor must be spec.trainer.accelerator.vendor, or NVIDIA next to Ascend; a pool without "
    "accelerator runs on the CPU"
)
TOKEN_NEEDED = "must be Token with spec.rollout.placement Separate: trainer and replicas prove by it who they are"
JUDGE_IN_POD = "must divide the accelerators of a reward pod, because a replica's accelerators must be in one pod"
JUDGE_ON_ALL = "must divide all accelerators of the trainer, which the judge uses with placement Colocated"
JUDGE_AHEAD = "must be Separate with spec.rollout.batchesAhead: the trainer is busy while samples are scored"
UNEVEN = "x spec.rollout.samplesPerPrompt must be a multiple of"
ACCELERATORS = "self.trainer.replicas * self.trainer.accelerator.count"
_SAMPLES = "(self.trainer.batch.prompts * self.rollout.samples_per_prompt)"


def _fits_trainer(pool: str) -> str:
    """The vendor of a pool's accelerator may be combined with the trainer's."""
    vendor = f"{pool}.accelerator.vendor"
    trainer = "self.trainer.accelerator.vendor"
    return (
        f"(({vendor} is not None) == ({trainer} is not None) and ({trainer} is None or {vendor} == {trainer} or "
        f"({vendor} in {list(VENDORS)} and {trainer} in {list(VENDORS)})))"
    )


def _in_pod(pool: str) -> str:
    """Accelerators of a pod of a pool."""
    accelerator = f"{pool}.accelerator"
    return f"({accelerator}.count if {accelerator} is not None else self.trainer.accelerator.count)"


ACCELERATOR_RULES = (
    Rule(
        "self.rollout.placement == 'Separate' or "
        f"self.rollout.replicas * self.rollout.engine.tensor_parallel_size == {ACCELERATORS}",
        "rollout.replicas",
        ENGINES,
        f"is {{self.rollout.replicas}}: {ENGINES} "
        "({self.trainer.accelerators} / {self.rollout.engine.tensor_parallel_size})",
    ),
    Rule(
        f"self.rollout.placement != 'Separate' or {_in_pod('self.rollout')} % "
        "self.rollout.engine.tensor_parallel_size == 0",
        "rollout.engine.tensorParallelSize",
        ENGINE_IN_POD,
        f"is {{self.rollout.engine.tensor_parallel_size}}: {ENGINE_IN_POD} ({{self.rollout_accelerator.count}})",
    ),
    Rule(
        f"self.rollout.placement != 'Separate' or self.rollout.accelerator is None or {_fits_trainer('self.rollout')}",
        "rollout.accelerator.vendor",
        NOT_WITH_TRAINER,
        f"is {{self.rollout.accelerator.vendor}}: {NOT_WITH_TRAINER} ({{self.trainer.accelerator.vendor}})",
        "rollout.accelerator",
    ),
    Rule("self.rollout.placement != 'Separate' or self.security.ray_auth == 'Token'", "security.rayAuth", TOKEN_NEEDED),
    Rule(
        "self.reward.model is None or self.reward.model.placement != 'Colocated' or "
        f"({ACCELERATORS}) % self.reward.model.tensor_parallel_size == 0",
        "reward.model.tensorParallelSize",
        JUDGE_ON_ALL,
        f"is {{self.reward.model.tensor_parallel_size}}: {JUDGE_ON_ALL} ({{self.trainer.accelerators}})",
    ),
    Rule(
        "self.reward.model is None or self.reward.model.placement != 'Separate' or "
        f"{_in_pod('self.reward.model')} % self.reward.model.tensor_parallel_size == 0",
        "reward.model.tensorParallelSize",
        JUDGE_IN_POD,
        f"is {{self.reward.model.tensor_parallel_size}}: {JUDGE_IN_POD} ({{self.judge_accelerator.count}})",
    ),
    Rule(
        "self.reward.model is None or self.reward.model.placement == 'Separate' or self.rollout.batches_ahead == 0",
        "reward.model.placement",
        JUDGE_AHEAD,
        f"is Colocated: {JUDGE_AHEAD}",
    ),
    Rule(
        f"self.reward.model is None or self.reward.model.accelerator is None or {_fits_trainer('self.reward.model')}",
        "reward.model.accelerator.vendor",
        NOT_WITH_TRAINER,
        f"is {{self.reward.model.accelerator.vendor}}: {NOT_WITH_TRAINER} ({{self.trainer.accelerator.vendor}})",
        "reward.model.accelerator",
    ),
    Rule(
        f"all(scorer.pool is None or scorer.pool.accelerator is None or {_fits_trainer('scorer.pool')} "
        "for scorer in self.reward.scorers)",
        "reward.scorers",
        SCORER_VENDOR,
    ),
    Rule(
        f"{_SAMPLES} % ({ACCELERATORS}) == 0",
        "trainer.batch.prompts",
        f"{UNEVEN} the number of accelerators",
        f"{UNEVEN} the number of accelerators: {{self.samples}} is not a multiple of {{self.trainer.accelerators}}",
    ),
    Rule(
        f"self.rollout.agent_loop.workers is None or {_SAMPLES} % self.rollout.agent_loop.workers == 0",
        "trainer.batch.prompts",
        f"{UNEVEN} spec.rollout.agentLoop.workers",
        f"{UNEVEN} spec.rollout.agentLoop.workers: {{self.samples}} is not a multiple of "
        "{self.rollout.agent_loop.workers}",
    ),
)

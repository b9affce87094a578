"""`DiffusionRLJob`, the custom resource."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import override

from verl_omni.settings_schema.layout import default_of

from .base import Rule, StrictModel, Violation, immutable, is_in_store
from .metadata import Metadata
from .rules.accelerator_rules import ACCELERATOR_RULES, ACCELERATORS
from .rules.override_rules import override_violations
from .spec.data import Data
from .spec.model import Model
from .spec.output import STORAGE_RULES, Output, Storage
from .spec.platform import Observability, Scheduling, Security
from .spec.pod_template import drop_nulls
from .spec.pods import Accelerator, Head, Runtime
from .spec.policy import CleanupPolicy, FailurePolicy, ManagedBy, Seconds, SuspendPolicy
from .spec.reward import Reward
from .spec.rollout import Rollout
from .spec.training import ESTIMATORS, Algorithm, Checkpoint, Trainer
from .status import Status

API_VERSION = "diffusionrl.io/v1alpha1"
KIND = "DiffusionRLJob"
RESULTS_LOST = (
    "is not given: checkpoints, adapter, images and report are in an emptyDir, which is deleted with the pods soon "
    "after the attempt ends; name a PersistentVolumeClaim to keep them"
)
NO_VENDOR = (
    "is not given: the pods request no accelerator and train on the CPU; write NVIDIA or Ascend, or CPU to confirm"
)
NO_CLAIM = "needs spec.checkpoint.claimName: another attempt resumes from a checkpoint that must outlive the pods"
NO_HELD_OUT = "a scorer with use Evaluation needs held-out prompts; write spec.data.validation"
COMPARES = "must be at least 2: the algorithm compares samples of one prompt"
NO_NOISE = f"must be more than 0: {', '.join(ESTIMATORS)} learn from the sampler's noise"
NO_WINDOW = "must be given: MixGRPO trains on a window of the steps"
NOT_DANCE = "must be dance_sde, or absent: DanceGRPO is trained on that sampler; write FlowGRPO with another"
GUARD_CPS = "must be sde or dance_sde: GRPOGuard divides by the noise of each step, and cps does not"
CPS_AT_END = "must be less than spec.rollout.pipeline.steps with cps, which adds no noise in the last step"
PAIRS = "must be a multiple of the number of accelerators: DiffusionDPO trains on one pair of samples per prompt"

NO_ADAPTERS = "must be 0 where spec.model.lora.enabled is false: there is no adapter"


class Spec(StrictModel):
    """A training run."""

    model: Model = Field(description="Model to train.")
    data: Data = Field(description="Prompts to train on and to evaluate with.")
    reward: Reward = Field(description="How images are scored.")
    trainer: Trainer = Field(description="Pods, accelerators, training steps and learning rate.")
    algorithm: Algorithm = Field(
        default=Algorithm.model_construct(), description="Training algorithm, and overrides of trainer settings."
    )
    rollout: Rollout = Field(default=Rollout.model_construct(), description="How samples are generated.")
    checkpoint: Checkpoint = Field(
        default=Checkpoint.model_construct(), description="Checkpoints, and where they are kept."
    )
    output: Output | None = Field(default=None, description="Where results are sent. Default: nowhere.")
    storage: Storage = Field(
        default=Storage.model_construct(), description="Access to S3-compatible stores and the hub."
    )
    seed: int = Field(default=default_of("trainer.seed"), ge=0, le=2**31 - 1, description="Seed of all random numbers.")
    suspend: bool = Field(
        default=False,
        description="true: save a checkpoint and delete the pods. false: run, or resume from the newest checkpoint.",
    )
    managed_by: ManagedBy = Field(
        default="diffusionrl.io/operator",
        description="Controller that runs the job: this cluster's operator, or another cluster through MultiKueue.",
        json_schema_extra=immutable("managedBy"),
    )
    active_deadline_seconds: Seconds | None = Field(
        default=None,
        description="Deadline of the whole job, all attempts and the pauses between them, in seconds. A suspension "
        "restarts it, as for Jobs. Default: no deadline.",
    )
    pre_running_deadline_seconds: Seconds | None = Field(
        default=None,
        description="Deadline from the admission of an attempt to the start of its trainer, in seconds. Default: none.",
    )
    backoff_limit: int = Field(
        default=0, ge=0, le=50, description="Maximum retries after failures. More than 0 needs checkpoint.claimName."
    )
    disruption_limit: int = Field(
        default=20,
        ge=0,
        le=50,
        description="Maximum retries after disruptions (reason Preempted): evictions, preemption, lost nodes. They "
        "count against backoffLimit only if a rule of failurePolicy says Retry.",
    )
    failure_policy: FailurePolicy = Field(
        default=FailurePolicy.model_construct(), description="Which failures are retried."
    )
    suspend_policy: SuspendPolicy = Field(
        default=SuspendPolicy.model_construct(), description="What happens before the job is suspended."
    )
    ttl_seconds_after_finished: Annotated[int, Field(ge=0, le=31_536_000)] | None = Field(
        default=None, description="Seconds after its end before the job is deleted. Default: it is kept."
    )
    cleanup_policy: CleanupPolicy = Field(
        default="DeleteCluster",
        description="At the end of an attempt, delete its Ray cluster (DeleteCluster), delete only the workers "
        "(DeleteWorkers), or keep all pods (Retain).",
    )
    runtime: Runtime = Field(default=Runtime.model_construct(), description="Image and service account of the pods.")
    head: Head = Field(default=Head.model_construct(), description="Pod of the Ray head.")
    scheduling: Scheduling = Field(default=Scheduling.model_construct(), description="Scheduling of the pods.")
    security: Security = Field(
        default=Security.model_construct(), description="Authentication and network policy of the pods."
    )
    observability: Observability = Field(
        default=Observability.model_construct(), description="Metrics and experiment tracking."
    )

    cel = (
        Rule("self.backoff_limit == 0 or self.checkpoint.claim_name is not None", "backoffLimit", NO_CLAIM),
        Rule(
            "all(scorer.use == 'Training' for scorer in self.reward.scorers) or "
            "(self.data.validation is not None and len(self.data.validation) > 0)",
            "reward.scorers",
            NO_HELD_OUT,
        ),
        *STORAGE_RULES,
        *ACCELERATOR_RULES,
        Rule(
            "self.algorithm.name == 'Custom' or self.rollout.samples_per_prompt >= 2",
            "rollout.samplesPerPrompt",
            COMPARES,
        ),
        Rule(
            f"self.algorithm.name not in {list(ESTIMATORS)} or self.rollout.sampler.noise_level > 0.0",
            "rollout.sampler.noiseLevel",
            NO_NOISE,
        ),
        Rule(
            "self.algorithm.name != 'MixGRPO' or self.rollout.sampler.window is not None",
            "rollout.sampler.window",
            NO_WINDOW,
            path="rollout.sampler",
        ),
        Rule(
            "self.algorithm.name != 'DanceGRPO' or self.rollout.sampler.type is None or "
            "self.rollout.sampler.type == 'dance_sde'",
            "rollout.sampler.type",
            NOT_DANCE,
        ),
        Rule(
            "self.algorithm.name != 'GRPOGuard' or self.rollout.sampler.type is None or "
            "self.rollout.sampler.type != 'cps'",
            "rollout.sampler.type",
            GUARD_CPS,
        ),
        Rule(
            f"self.algorithm.name not in {list(ESTIMATORS)} or self.rollout.sampler.noise_level == 0.0 or "
            "self.rollout.sampler.type is None or self.rollout.sampler.type != 'cps' or "
            "self.rollout.sampler.window is None or self.rollout.sampler.window.end < self.rollout.pipeline.steps",
            "rollout.sampler.window.end",
            CPS_AT_END,
            path="rollout.sampler.window",
        ),
        Rule(
            f"self.algorithm.name != 'DiffusionDPO' or self.trainer.batch.prompts % ({ACCELERATORS}) == 0",
            "trainer.batch.prompts",
            PAIRS,
        ),
        Rule(
            "self.checkpoint.adapter_every_steps == 0 or self.model.lora.enabled",
            "checkpoint.adapterEverySteps",
            NO_ADAPTERS,
        ),
    )

    @property
    def uses_accelerators(self) -> bool:
        """Whether pods on a cluster request accelerators; without a vendor, they compute on the CPU."""
        return self.trainer.accelerator.vendor not in (None, "CPU")

    @property
    def samples(self) -> int:
        """Samples of a training step."""
        return self.trainer.batch.prompts * self.rollout.samples_per_prompt

    @property
    def rollout_accelerator(self) -> Accelerator:
        """Accelerators of one rollout pod, where engines have pods of their own."""
        return self.rollout.accelerator or self.trainer.accelerator

    @property
    def rollout_accelerators(self) -> int:
        """Accelerators of all rollout pods; 0 where engines share the trainer's accelerators."""
        return self.rollout.replicas * self.rollout_accelerator.count if self.rollout.separate else 0

    @property
    def trainer_uses_s3(self) -> bool:
        """Whether the training program reads from an S3-compatible store, or writes to one."""
        sends = self.output is not None and self.output.in_s3
        return sends or any(map(is_in_store, (*self.data.train, *self.data.validation)))

    @property
    def uses_s3(self) -> bool:
        """Whether any pod reads from an S3-compatible store, or writes to one."""
        return self.trainer_uses_s3 or self.model.base_in_store

    @property
    def sends_to_hub(self) -> bool:
        """Whether the training program sends results to a repository of the Hugging Face hub."""
        return self.output is not None and self.output.in_hub

    @property
    def judge_accelerator(self) -> Accelerator:
        """Accelerators of one reward pod, where the judge has separate pods."""
        judge = self.reward.model
        return (judge.accelerator if judge else None) or self.trainer.accelerator

    @property
    def judge_pods(self) -> int:
        """Number of reward pods; 0 without a judge in separate pods."""
        judge = self.reward.model
        return judge.replicas if judge and judge.separate else 0

    @property
    def judge_accelerators(self) -> int:
        """Accelerators of all reward pods; 0 without a judge in separate pods."""
        return self.judge_pods * self.judge_accelerator.count

    @property
    def scorer_accelerators(self) -> int:
        """Accelerators of all scorer pods."""
        return sum(scorer.pool.accelerators for scorer in self.reward.scorers if scorer.pool)

    @property
    def has_pools(self) -> bool:
        """Whether there are pods besides the head's and the trainer's."""
        return self.rollout.separate or self.judge_pods > 0 or any(scorer.pool for scorer in self.reward.scorers)

    @property
    def keeps_results(self) -> bool:
        """Whether the run folder outlives the pods: it is on a claim, or on a volume of the user's."""
        if self.checkpoint.claim_name:
            return True
        spec: Mapping[str, Any] = drop_nulls(self.trainer.pod_template).get("spec", {})
        mounts = [mount for container in spec.get("containers", ()) for mount in container.get("volumeMounts", ())]
        names = {"runs"} | {mount.get("name") for mount in mounts if mount.get("mountPath") == self.checkpoint.path}
        return any(volume["name"] in names and "emptyDir" not in volume for volume in spec.get("volumes", ()))

    @override
    def violations(self) -> Iterator[Violation]:
        yield from super().violations()
        yield from override_violations(
            self.algorithm, self.trainer, self.rollout, trains_adapter=self.model.lora.enabled
        )


class DiffusionRLJob(StrictModel):
    """Fine-tune a diffusion model with reinforcement learning."""

    api_version: Literal["diffusionrl.io/v1alpha1"] = Field(description="API version: diffusionrl.io/v1alpha1.")
    kind: Literal["DiffusionRLJob"] = Field(description="Kind: DiffusionRLJob.")
    metadata: Metadata = Field(description="Name, labels and annotations.")
    spec: Spec = Field(description="Training run to carry out.")
    status: Status = Field(
        default=Status.model_construct(), description="State of the job, as observed by the operator."
    )

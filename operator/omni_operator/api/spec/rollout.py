"""`spec.rollout`: how samples are generated."""

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from omni_operator.api.base import Rule, StrictModel, separate_only
from verl_omni.settings_schema.declarations import ALGO, PIPELINE, ROLLOUT, SDE_TYPES
from verl_omni.settings_schema.layout import default_of

from .autoscaling import RolloutAutoscaling, autoscaling_rules
from .platform import PoolScheduling
from .pod_template import PodTemplate
from .pods import Accelerator, PodReplacement, Resources, SharedMemory

if TYPE_CHECKING:
    SdeType = str
else:
    SdeType = Literal[SDE_TYPES]
AHEAD_NEEDS_PODS = "must be 0 with placement Colocated: engines and trainer share accelerators; write Separate"
COLOCATED = "must not be given with placement Colocated: engines run in the trainer's pods; write Separate"
OF_OWN_PODS = (
    "minReplicas",
    "autoscaling",
    "drainSeconds",
    "updateStrategy",
    "accelerator",
    "resources",
    "sharedMemory",
    "scheduling",
    "podTemplate",
)
MORE_THAN_ALL = "must not be more than spec.rollout.replicas"
WOULD_WAIT = "must not be less than spec.rollout.minReplicas, with fewer than which the trainer waits"
NOTHING_CACHED = "needs spec.rollout.engine.promptCache: true: every batch would move the text encoders otherwise"
WINDOW_TOO_LONG = "must not be more than spec.rollout.pipeline.steps"
NOTHING_TO_TRAIN = "must be at least 2 without spec.rollout.sampler.window: the last step adds no noise to train on"
WINDOW_DOES_NOT_FIT = "must not be more than the steps between start and end of the window"


class Engine(StrictModel):
    """The inference engine that generates samples."""

    type: Literal["vLLMOmni"] = Field(default="vLLMOmni", description="Inference engine.")
    tensor_parallel_size: int = Field(
        default=default_of(f"{ROLLOUT}.tensor_model_parallel_size"),
        ge=1,
        le=64,
        description="Accelerators that share one copy of the model. They must be in one pod, and their number must "
        "divide the attention heads of the model's transformer, and in some families its feed-forward layers.",
    )
    dtype: Literal["bfloat16", "float32"] | None = Field(
        default=None, description="Dtype of the engine's weights. Default: bfloat16 with accelerators, float32 without."
    )
    max_batch_size: int = Field(
        default=default_of(f"{ROLLOUT}.max_num_seqs"),
        ge=1,
        le=4096,
        description="Maximum samples in one engine batch.",
    )
    max_concurrent_requests: int | None = Field(
        default=None,
        ge=1,
        le=65536,
        description="Maximum samples that one agent-loop worker has in generation. Default: the workers together have "
        "twice maxBatchSize for each engine.",
    )
    prompt_cache: bool = Field(
        default=False,
        description="Keep prompt embeddings on disk, in the folder .prompt-cache next to the run folders, for later "
        "epochs and for other jobs. See docs/guides/pools.md.",
    )
    offload_text_encoders: bool = Field(
        default=False,
        description="Keep the engines' text encoders in CPU memory, except while prompts are encoded that promptCache "
        "does not have. Needs promptCache.",
    )


class AgentLoop(StrictModel):
    """Agent-loop workers, the processes that send prompts to the engines and collect samples."""

    workers: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Number of agent-loop workers, spread over the pods. Default: one for each pod and for each eight "
        "engines, or a few more to divide the samples of a step.",
    )


class Pipeline(StrictModel):
    """Settings of the diffusion pipeline, the same for every sample."""

    height: int = Field(
        default=default_of(f"{PIPELINE}.height"),
        ge=8,
        le=8192,
        multiple_of=8,
        description="Height of an image, in pixels.",
    )
    width: int = Field(
        default=default_of(f"{PIPELINE}.width"),
        ge=8,
        le=8192,
        multiple_of=8,
        description="Width of an image, in pixels.",
    )
    steps: int = Field(
        default=default_of(f"{PIPELINE}.num_inference_steps"), ge=1, le=1000, description="Denoising steps."
    )
    guidance: float = Field(
        default=default_of(f"{PIPELINE}.guidance_scale"),
        ge=0,
        le=100,
        description="Classifier-free guidance scale. Default: 1, no guidance.",
    )
    max_sequence_length: int = Field(
        default=default_of(f"{PIPELINE}.max_sequence_length"),
        ge=1,
        le=8192,
        description="Maximum tokens of a prompt in the longest text encoder.",
    )


class Window(StrictModel):
    """Denoising steps that add noise and are trained on; the other steps follow the ODE."""

    size: int = Field(ge=1, le=1000, description="Number of consecutive steps.")
    start: int = Field(default=0, ge=0, le=1000, description="First step that the window may cover, counted from 0.")
    end: int = Field(
        ge=1,
        le=1000,
        description="The window ends before this step. If start to end is longer than size, see placement.",
    )
    placement: Literal["Random", "Progressive"] | None = Field(
        default=None,
        description="Random: a random place for each prompt and training step, the same for all samples of the prompt. "
        "Progressive: one place for all samples, which moves from start to end and begins again. Default: Progressive "
        "with MixGRPO, Random otherwise.",
    )
    steps_per_place: int = Field(
        default=default_of(f"{ALGO}.iters_per_group"),
        ge=1,
        le=10_000_000,
        description="Training steps before a Progressive window moves on.",
    )

    cel = (
        Rule(
            "self.start + self.size <= self.end",
            "size",
            WINDOW_DOES_NOT_FIT,
            f"is {{self.size}}: {WINDOW_DOES_NOT_FIT} ({{self.start}} to {{self.end}})",
        ),
    )

    def placement_with(self, algorithm: str) -> Literal["Random", "Progressive"]:
        """The placement, with an algorithm's default."""
        return self.placement or ("Progressive" if algorithm == "MixGRPO" else "Random")


class Sampler(StrictModel):
    """How the sampler adds noise between denoising steps."""

    type: SdeType | None = Field(
        default=None,
        description="sde: Flow-GRPO (arXiv:2505.05470). cps: coefficient-preserving sampling. dance_sde: DanceGRPO. "
        "Default: dance_sde with DanceGRPO, sde otherwise.",
    )
    noise_level: float = Field(
        default=0.7,
        ge=0,
        le=10,
        description="Scale of the noise. 0: none, which the algorithms on recorded steps refuse: they learn from it "
        "(docs/reference/algorithms.md).",
    )
    window: Window | None = Field(
        default=None, description="Steps that add noise. Default: all but the last step, whose noise is never denoised."
    )


class UpdateStrategy(PodReplacement):
    """How rollout pods of the running attempt are replaced when spec.rollout changes what they are made of."""

    type: Literal["RollingByWeightVersion"] = Field(
        default="RollingByWeightVersion",
        description="Pods whose engines do not serve are replaced first, then those with the oldest weights.",
    )


class Staleness(StrictModel):
    """How old an engine's weights may be before the condition WeightsInSync turns False. Cluster only."""

    max_versions: int = Field(default=1, ge=0, le=100_000, description="Versions that an engine may be behind.")
    max_seconds: int = Field(
        default=3600, ge=1, le=31_536_000, description="Seconds since the engines last got new weights."
    )


class Rollout(StrictModel):
    """How samples are generated: several images for each prompt."""

    placement: Literal["Colocated", "Separate"] = Field(
        default="Colocated",
        description="Colocated: engines run on the trainer's accelerators, in its pods. Separate: they run in rollout "
        "pods, on accelerators of their own, and get weights over the network. See docs/guides/pools.md.",
    )
    replicas: int = Field(
        default=1,
        ge=1,
        le=1024,
        description="Colocated: number of engines; replicas x engine.tensorParallelSize must be all accelerators of "
        "the trainer. Separate: number of rollout pods; each has an engine for every engine.tensorParallelSize of its "
        "accelerators, and the number may change while the job runs (kubectl scale). In a local run, all accelerators "
        "are of one machine.",
    )
    min_replicas: int | None = Field(
        default=None,
        ge=1,
        le=1024,
        description="Rollout pods without which the trainer waits: with fewer that have the current weights, it "
        "generates nothing until others have joined. If given, the job also starts with fewer than all replicas, down "
        "to this number, where a Kueue queue, a quota or the nodes have no room for more. Default: 1. Separate only.",
    )
    autoscaling: RolloutAutoscaling | None = Field(
        default=None,
        description="Changes the number of rollout pods of the running attempt, which starts with replicas. Separate "
        "and cluster only.",
    )
    drain_seconds: int | None = Field(
        default=None,
        ge=0,
        le=3600,
        description="Time for a rollout pod that is deleted to finish the samples that its engines have; others "
        "generate the rest again. 0: none. Default: 60. Separate and cluster only.",
    )
    update_strategy: UpdateStrategy | None = Field(
        default=None,
        description="How rollout pods are replaced when resources, sharedMemory, scheduling, podTemplate or "
        "drainSeconds change while an attempt runs. Default: one at a time. Separate and cluster only.",
    )
    accelerator: Accelerator | None = Field(
        default=None, description="Accelerators of one rollout pod. Default: the trainer's. Separate only."
    )
    resources: Resources | None = Field(
        default=None,
        description="Requests and limits of a rollout pod; accelerators and sharedMemory are added. Default: requests "
        "of 1 CPU and 4Gi, no limits. Separate and cluster only.",
    )
    shared_memory: SharedMemory | None = Field(
        default=None, description="/dev/shm of a rollout pod. Default: sizeLimit 2Gi. Separate and cluster only."
    )
    scheduling: PoolScheduling | None = Field(
        default=None,
        description="Scheduling of the rollout pods, instead of nodeSelector, tolerations and topology in "
        "spec.scheduling, which are for the trainer's pods. Separate and cluster only.",
    )
    pod_template: PodTemplate | None = Field(
        default=None,
        description="Strategic merge patch for the template of the rollout pods: lists of containers, volumes and "
        "variables merge by name. Separate and cluster only.",
    )
    samples_per_prompt: int = Field(
        default=default_of(f"{ROLLOUT}.n"),
        ge=1,
        le=1024,
        description="Samples of one prompt, which the algorithm compares with each other.",
    )
    batches_ahead: int = Field(
        default=0,
        ge=0,
        le=7,
        description="Batches generated ahead of the step that trains on them, while the trainer updates; their samples "
        "are as many versions of the weights older, and the ratio to the policy that generated them is clipped. 0: "
        "generate, then update. Separate only. See docs/guides/pools.md.",
    )
    engine: Engine = Field(default=Engine.model_construct(), description="The inference engine that generates samples.")
    agent_loop: AgentLoop = Field(
        default=AgentLoop.model_construct(), description="Workers that send prompts to the engines."
    )
    pipeline: Pipeline = Field(default=Pipeline.model_construct(), description="Image size, denoising steps, guidance.")
    sampler: Sampler = Field(default=Sampler.model_construct(), description="How the sampler adds noise.")
    staleness: Staleness = Field(default=Staleness.model_construct(), description="How old an engine's weights may be.")

    cel = (
        Rule(
            "self.sampler.window is None or self.sampler.window.end <= self.pipeline.steps",
            "sampler.window.end",
            WINDOW_TOO_LONG,
            f"is {{self.sampler.window.end}}: {WINDOW_TOO_LONG}, which is {{self.pipeline.steps}}",
            "sampler",
        ),
        Rule(
            "self.sampler.window is not None or self.pipeline.steps >= 2",
            "pipeline.steps",
            NOTHING_TO_TRAIN,
            path="pipeline",
        ),
        Rule(
            "not self.engine.offload_text_encoders or self.engine.prompt_cache",
            "engine.offloadTextEncoders",
            NOTHING_CACHED,
            path="engine",
        ),
        # Placement first, so that most jobs need only this lookup: other rules refuse these fields with Colocated.
        Rule(
            "self.placement != 'Separate' or self.min_replicas is None or self.min_replicas <= self.replicas",
            "minReplicas",
            MORE_THAN_ALL,
            f"is {{self.min_replicas}}: {MORE_THAN_ALL}, which is {{self.replicas}}",
        ),
        Rule(
            "self.placement != 'Separate' or self.autoscaling is None or self.min_replicas is None or "
            "self.min_replicas <= self.autoscaling.min_replicas",
            "autoscaling.minReplicas",
            WOULD_WAIT,
            f"is {{self.autoscaling.min_replicas}}: {WOULD_WAIT}, which is {{self.min_replicas}}",
            "autoscaling",
        ),
        *autoscaling_rules("spec.rollout", "kubectl scale or a HorizontalPodAutoscaler"),
        Rule(
            "self.batches_ahead == 0 or self.placement == 'Separate'",
            "batchesAhead",
            AHEAD_NEEDS_PODS,
            f"is {{self.batches_ahead}}: {AHEAD_NEEDS_PODS}",
        ),
        *separate_only(COLOCATED, *OF_OWN_PODS),
    )

    @property
    def separate(self) -> bool:
        """Whether engines run in pods of their own."""
        return self.placement == "Separate"

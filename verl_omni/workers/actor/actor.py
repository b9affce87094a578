"""`DiffusionActor`: the trained policy on one rank, its updates, weights and checkpoints."""

import math
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from verl_omni.algos import agreement
from verl_omni.algos.flow_matching import TIMESTEPS
from verl_omni.pipelines.registry import training_adapter
from verl_omni.utils.metrics.metric_names import combine
from verl_omni.workers.actor import build, experts, export, parallel, precision, shard_loading
from verl_omni.workers.actor.gradient_accumulation import GradientAccumulation, chosen_rows, size
from verl_omni.workers.actor.measurements import Measurements
from verl_omni.workers.actor.model_flops import ModelFlops
from verl_omni.workers.actor.offload import Offload
from verl_omni.workers.actor.policy import Batch, Policy, PolicyName, average_decay
from verl_omni.workers.actor.sequence_parallel import split_sequence
from verl_omni.workers.actor.setting_checks import sequence_groups
from verl_omni.workers.actor.training_state import TrainingState
from verl_omni.workers.algorithms.base import ComparesWithStart, Objective, training_algorithm
from verl_omni.workers.config import DiffusionActorConfig, DiffusionModelConfig, DiffusionOptimizerConfig

# folders in a checkpoint
STATE = "state"
ADAPTER = "lora"


class DiffusionActor:
    """The trained transformer with its optimizer and learning-rate schedule.

    The model stays in evaluation mode: with dropout, the likelihoods would belong to a different policy than the one
    that sampled.

    Args:
        rollout_n: samples per prompt; a mini-batch has the rows of `ppo_mini_batch_size` prompts, over all ranks.
        mesh: device mesh to shard over with FSDP2; None for one process, which shards only for mixed precision.
        device: training device, the same as the mesh's if there is one; None for the CPU.

    Raises:
        ValueError: a mini-batch has fewer rows than there are ranks, or groups that share sequences; or the sequence
            cannot be split as the settings say (`sequence_parallel.split_sequence`).
    """

    def __init__(
        self,
        model: DiffusionModelConfig,
        actor: DiffusionActorConfig,
        rollout_n: int,
        *,
        mesh: DeviceMesh | None = None,
        device: torch.device | None = None,
    ) -> None:
        self.model_config = model
        self.config = actor
        self.mesh = mesh
        self.device = device or torch.device("cpu")
        self.ranks = mesh.size() if mesh is not None else 1
        self.sequence_ranks = actor.fsdp_config.ulysses_sequence_parallel_size
        groups = sequence_groups(self.ranks, self.sequence_ranks)
        self.algorithm = training_algorithm(actor.diffusion_loss.loss_mode)
        per_prompt = self.algorithm.rows_per_prompt(rollout_n)
        self.mini_batch = actor.ppo_mini_batch_size * per_prompt // groups
        if self.mini_batch <= 0:
            raise ValueError(
                f"{actor.ppo_mini_batch_size} prompts x {per_prompt} rows are fewer than {groups} ranks"
                f"{' or groups of them' if groups < self.ranks else ''}: raise actor.ppo_mini_batch_size"
            )
        lora = model.lora_rank > 0
        dtypes = precision.resolve(actor.fsdp_config, lora=lora)
        if mesh is None and dtypes.mixed:
            self.mesh = mesh = parallel.mesh_of_one(self.device)
        self.module = self._load(dtypes)
        compared = not lora and self.algorithm.compares_with_base(actor.diffusion_loss, actor)
        base = self._load(replace(dtypes, frozen=dtypes.compute)) if compared else None
        self.policy = Policy(
            self.module,
            training_adapter(model.architecture),
            dtype=dtypes.compute,
            lora=lora,
            keeps_old="old" in model.policy_state_adapters,
            averages=actor.ema_decay is not None,
            base=base,
        )
        self._flops = ModelFlops(model)
        for module in (self.module, *([] if base is None else [base])):
            self._flops.watch(module)
        self.trained = list(self.policy.trained.values())
        self.optimizer = _adamw(self.trained, actor.optim)
        self.scheduler = _schedule(self.optimizer, actor.optim)
        self._skipped = 0  # optimizer steps in a row
        # The update whose rows arrive in parts, and what keeps its weights on the device.
        self._parts: tuple[Objective, GradientAccumulation, ExitStack] | None = None
        self.generator = torch.Generator().manual_seed(actor.seed)
        self._state = TrainingState(self.policy, self.optimizer, self.scheduler, self.generator, mesh)
        self.offload = Offload(self.policy, self.optimizer, self.device, actor.fsdp_config)
        self.offload.rest()

    def _load(self, dtypes: precision.Precision) -> nn.Module:
        """The transformer of the model's folder, or both, on the training device."""
        ratio = experts.boundary_of(self.model_config)
        seed = self.config.seed
        first = self._load_component(experts.HIGH_NOISE, dtypes, seed)
        if ratio is None:
            return first
        both = {experts.HIGH_NOISE: first, experts.LOW_NOISE: self._load_component(experts.LOW_NOISE, dtypes, seed + 1)}
        return experts.Experts(both, ratio * TIMESTEPS, shared=self.ranks > 1).eval()

    def _load_component(self, component: str, dtypes: precision.Precision, seed: int) -> nn.Module:
        model = self.model_config
        fsdp = self.config.fsdp_config
        if self.mesh is None:
            module = build.load_transformer(model, precision=dtypes, seed=seed, component=component)
            module = module.eval().to(self.device)
            self._change_layers(module)
            return module
        return shard_loading.load_sharded(
            model,
            self.mesh,
            precision=dtypes,
            seed=seed,
            component=component,
            reshard_after_forward=fsdp.reshard_after_forward,
            forward_prefetch=fsdp.forward_prefetch,
            before_sharding=self._change_layers,
        )

    def _change_layers(self, module: nn.Module) -> None:
        """Split the sequence and compile layers, if the settings ask for it: after the adapter, before sharding."""
        if self.sequence_ranks > 1:
            split_sequence(module, self.device.type, self.ranks, self.sequence_ranks)
        if self.config.fsdp_config.use_torch_compile:
            parallel.compile_layers(module, self.model_config.fsdp_layer_prefixes)

    def take_flops(self) -> float | None:
        """FLOPs of this rank's passes since the last call; None as `ModelFlops.take`.

        Ranks that share a sequence have equal parts.
        """
        flops = self._flops.take()
        return None if flops is None else flops / self.sequence_ranks

    # --- update -----------------------------------------------------------------------------------------

    def update(self, batch: Batch, **request: Any) -> dict[str, float]:
        """Update the policy with `ppo_epochs` passes over this rank's rows.

        Args:
            batch: the algorithm's training batch.
            request: what the algorithm's `update_arguments` returned.

        Returns:
            `actor/loss`, `actor/grad_norm`, `actor/lr`, `actor/optimizer_steps` (taken), `actor/skipped_steps`, and the
            metrics of the objective.

        Raises:
            FloatingPointError: more than `max_skipped_steps` optimizer steps in a row were skipped, because their
                gradients were not finite.
            LogProbMismatch: engine and trainer disagree about log-probabilities; nothing was updated.
        """
        totals: dict[str, list[float]] = {}
        self._drop_parts()
        with self.offload.loaded(states=True):
            objective = self.algorithm.objective(self.policy, self.config.diffusion_loss, self.config, request)
            epochs = range(self.config.ppo_epochs)
            mini_batches = [chosen for _ in epochs for chosen in self._order(size(batch)).split(self.mini_batch)]
            if isinstance(objective, ComparesWithStart):
                batch = {**batch, **self._start_values(batch, mini_batches, objective)}
            for chosen in mini_batches:
                accumulated = self._accumulation(objective, len(chosen))
                accumulated.add(objective.prepare(chosen_rows(batch, chosen)), is_last=True)
                for name, value in self._optimizer_step(accumulated, objective).items():
                    totals.setdefault(name, []).append(value)
            objective.finish()
        combined = {name: combine(name, values) for name, values in totals.items()}
        return {**combined, **{name: sum(totals[name]) for name in ("actor/optimizer_steps", "actor/skipped_steps")}}

    def update_part(
        self, batch: Batch, *, rows: int, is_first: bool, is_last: bool, scale: float = 1.0, **request: Any
    ) -> dict[str, float] | None:
        """Accumulate the gradients of some rows of an update with one optimizer step, in one process.

        After the last part the update is what `update` does with all rows, and returns its metrics.

        Args:
            rows: rows of all parts together.
            is_first: whether an update begins; parts of another one, which has not ended, are dropped.
            scale: factor of the gradients and the loss, read with the last part.
            request: as of `update`, read with the first part.

        Raises:
            Exception: as `update`.
        """
        if is_first:
            self._drop_parts()
            with ExitStack() as loading:
                loading.enter_context(self.offload.loaded(states=True))
                objective = self.algorithm.objective(self.policy, self.config.diffusion_loss, self.config, request)
                self._parts = objective, self._accumulation(objective, rows), loading.pop_all()
        assert self._parts is not None, "the first part begins the update"
        objective, accumulated, loading = self._parts
        accumulated.add(objective.prepare(batch), is_last=is_last)
        if not is_last:
            return None
        with loading:
            self._parts = None
            metrics = self._optimizer_step(accumulated, objective, scale)
            objective.finish()
        return metrics

    def _drop_parts(self) -> None:
        """Drop the gradients of an update that has not ended: the samples of its last parts are missing."""
        if self._parts is not None:
            self.optimizer.zero_grad()
            self._flops.take()
            self._parts[2].close()
            self._parts = None

    def _order(self, rows: int) -> Tensor:
        return torch.randperm(rows, generator=self.generator) if self.config.shuffle else torch.arange(rows)

    def _learning(self, batch: Batch, objective: Objective) -> Tensor:
        """Places of the rows of a mini-batch that an optimizer step computes terms of."""
        learning = objective.rows_with_gradient(batch).nonzero().flatten()
        if self.ranks > 1 or len(learning) == 0:  # every rank must run the same collectives
            return torch.arange(size(batch))
        return learning

    def _micro_batch(self, objective: Objective) -> int:
        samples = self.config.ppo_micro_batch_size_per_gpu
        return max(1, samples // objective.samples_per_row) if samples else self.mini_batch

    @torch.no_grad()
    def _start_values(self, batch: Batch, mini_batches: Sequence[Tensor], objective: ComparesWithStart) -> Batch:
        """The objective's `start_values` of all terms, [B, terms, ...]; NaN in rows that need none."""
        needed = {"none": [], "later": mini_batches[1:], "all": mini_batches}[objective.recomputed]
        if not needed:
            return {}
        rows = torch.cat([chosen[self._learning(chosen_rows(batch, chosen), objective)] for chosen in needed]).unique()
        starts: Batch = {}
        for chosen in rows.split(self._micro_batch(objective)):
            part = chosen_rows(objective.prepare(chosen_rows(batch, chosen)), slice(None), self.device)
            terms = [objective.start_values(part, index) for index in range(objective.term_count(part))]
            for name in terms[0]:
                values = torch.stack([term[name] for term in terms], dim=1).cpu()
                starts.setdefault(name, values.new_full((size(batch), *values.shape[1:]), math.nan))[chosen] = values
        return starts

    def _accumulation(self, objective: Objective, rows: int) -> GradientAccumulation:
        samples = self.config.ppo_micro_batch_size_per_gpu
        each_reduces = parallel.reduces_each_pass(self.config.fsdp_config, isinstance(self.module, experts.Experts))
        return GradientAccumulation(
            objective,
            Measurements(self.ranks),
            self.device,
            rows=rows,
            micro=max(1, samples // objective.samples_per_row) if samples else None,
            every_row=self.ranks > 1,
            sequence_ranks=self.sequence_ranks,
            before_pass=lambda is_last: parallel.require_reduction(self.module, each_reduces or is_last),
        )

    def _optimizer_step(
        self, accumulated: GradientAccumulation, objective: Objective, scale: float = 1.0
    ) -> dict[str, float]:
        """Take a step with the accumulated gradients times `scale`."""
        try:
            summary = objective.summarize(accumulated.measurements.of_all_ranks(), accumulated.terms * self.ranks)
        except agreement.EngineMismatch:
            self.optimizer.zero_grad()
            raise
        if scale != 1.0:
            for gradient in (weight.grad for weight in self.trained if weight.grad is not None):
                gradient.mul_(scale)
        return {"actor/loss": accumulated.loss * scale, **self._take_step(), **summary}

    def _take_step(self) -> dict[str, float]:
        """Take an optimizer step with the accumulated gradients, or skip it if they are not finite.

        All ranks have the same norm, so they skip the same steps. Weights without a gradient do not change: if no
        rank had rows with a gradient for one of two transformers, neither momentum nor weight decay changes it.

        Raises:
            FloatingPointError: too many steps in a row were skipped.
        """
        if isinstance(self.module, experts.Experts):
            self.module.drop_zero_gradients()
        norm = float(build.gather(torch.nn.utils.clip_grad_norm_(self.trained, self.config.grad_clip)))
        rate = self.scheduler.get_last_lr()[0]
        finite = math.isfinite(norm)
        self._skipped = 0 if finite else self._skipped + 1
        if finite:
            self.optimizer.step()
            self.scheduler.step()
            if self.config.ema_decay is not None:
                # The schedule counts the steps that were taken, also those before a resume.
                decay = average_decay(self.scheduler.last_epoch, self.config.ema_decay)
                self.policy.require_average().follow(self.policy.trained, decay)
        self.optimizer.zero_grad()
        if self._skipped > self.config.max_skipped_steps:
            raise FloatingPointError(
                f"{self._skipped} optimizer steps in a row were skipped because their gradients were not finite (the "
                f"last norm was {norm}); actor.max_skipped_steps={self.config.max_skipped_steps}: lower the learning "
                "rate, or check the model's dtype"
            )
        counts = {"actor/optimizer_steps": float(finite), "actor/skipped_steps": float(not finite), "actor/lr": rate}
        return {**counts, "actor/grad_norm": norm} if finite else counts

    # --- weights and checkpoints ---------------------------------------------------------------------------

    def weights(
        self, kind: Literal["lora", "full"], which: PolicyName = "default", dtype: torch.dtype | None = None
    ) -> Generator[tuple[str, Tensor]]:
        """(name, unsharded tensor) of the adapter or of all weights; names are `transformer.<path>…`, of a second
        transformer `transformer_2.<path>…`.

        Args:
            which: the trained policy, the old one, or the moving average.
            dtype: dtype to cast each tensor to; None: the parameter's dtype.

        Raises:
            ValueError: a policy is asked for that is not kept.
        """
        self._values(which)
        return self._weights(kind, which, dtype)

    def _values(self, which: PolicyName) -> Mapping[str, Tensor] | None:
        """Values to use instead of the module's, by parameter name; None for the trained policy."""
        match which:
            case "old":
                return self.policy.require_old().values
            case "average":
                return self.policy.require_average().values
            case "default":
                return None

    def _weights(
        self, kind: Literal["lora", "full"], which: PolicyName, dtype: torch.dtype | None
    ) -> Generator[tuple[str, Tensor]]:
        with self.offload.loaded():
            yield from export.weights(self.module, kind, instead=self._values(which), dtype=dtype)

    def peft_config(self) -> dict[str, Any] | None:
        """`PeftConfig` of the adapter as JSON data; None when all weights are trained."""
        return export.peft_config(self.module) if self.model_config.lora_rank > 0 else None

    def save(self, folder: Path) -> None:
        """Write the training state, so that `load` resumes bit-exactly."""
        with self.offload.loaded(states=True):
            self._state.save(folder)

    def stage(self, folder: Path) -> Callable[[], None]:
        """Copy the contents of a checkpoint to CPU memory: the training state, and the adapter if one is trained.

        Returns:
            A function that writes the copy to `folder`/state and `folder`/lora, in any thread, during training.
        """
        with self.offload.loaded(states=True):
            write_state = self._state.stage(folder / STATE)
            write_adapter = self._stage_adapter(folder / ADAPTER)

        def write() -> None:
            write_state()
            write_adapter()

        return write

    def load(self, folder: Path) -> None:
        """Read what `save` wrote; raises as `TrainingState.load`."""
        with self.offload.loaded(states=True):
            self._state.load(folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter in diffusers' `load_lora_weights` format; nothing when all weights are trained.

        With `ema_decay`, the adapter of the moving average is written.
        """
        with self.offload.loaded():
            self._stage_adapter(folder)()

    def _stage_adapter(self, folder: Path) -> Callable[[], None]:
        if self.model_config.lora_rank <= 0:
            return lambda: None
        instead = self._values("default" if self.config.ema_decay is None else "average")
        write = self.mesh is None or self.mesh.get_rank() == 0
        return export.stage_adapter(self.module, folder, instead, write=write)


def _adamw(parameters: Iterable[nn.Parameter], config: DiffusionOptimizerConfig) -> torch.optim.AdamW:
    return torch.optim.AdamW(
        list(parameters),
        lr=config.lr,
        betas=tuple(config.betas),
        weight_decay=config.weight_decay,
        **{"eps": config.eps, **(config.override_optimizer_config or {})},
    )


def _schedule(optimizer: torch.optim.Optimizer, config: DiffusionOptimizerConfig) -> torch.optim.lr_scheduler.LambdaLR:
    return torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: learning_rate_factor(step, config))


def learning_rate_factor(step: int, config: DiffusionOptimizerConfig) -> float:
    """Factor of the learning rate at optimizer step `step` (from 0): linear warm-up, then constant or cosine.

    At the share t of the steps after the warm-up: (1 + min) / 2 + (1 - min) / 2 * cos(2 pi num_cycles t), with
    min = `min_lr_ratio`, as `verl.utils.torch_functional.get_cosine_schedule_with_warmup`.
    """
    if step < config.lr_warmup_steps:
        return (step + 1) / config.lr_warmup_steps
    if config.lr_scheduler_type == "constant" or config.total_training_steps <= 0:
        return 1.0
    done = (step - config.lr_warmup_steps) / max(1, config.total_training_steps - config.lr_warmup_steps)
    cosine = math.cos(2 * math.pi * config.num_cycles * min(1.0, done))
    return (1 + config.min_lr_ratio) / 2 + (1 - config.min_lr_ratio) / 2 * cosine

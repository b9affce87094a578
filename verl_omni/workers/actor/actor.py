"""`DiffusionActor`: the policy on one rank, and how it is updated."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from verl_omni.algos import agreement, losses, sde
from verl_omni.pipelines.registry import training_adapter
from verl_omni.workers.actor import build, export, optim, state
from verl_omni.workers.config import DiffusionActorConfig, DiffusionModelConfig

Batch = dict[str, Tensor]


class DiffusionActor:
    """Holds the transformer, its optimiser and schedule.

    The model stays in evaluation mode: the policy whose likelihood is measured must be the one that sampled,
    and dropout would make it another.

    Args:
        rollout_n: samples a prompt; a mini-batch is `ppo_mini_batch_size * rollout_n` samples over all ranks.
        mesh: shard over it with FSDP2; None for one process.
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
        self.model_config, self.config, self.mesh = model, actor, mesh
        self.adapter = training_adapter(model.architecture)
        self.device = device or torch.device("cpu")
        self.ranks = mesh.size() if mesh is not None else 1
        self.mini_batch = actor.ppo_mini_batch_size * rollout_n // self.ranks
        if self.mini_batch <= 0:
            raise ValueError(f"{actor.ppo_mini_batch_size} x {rollout_n} samples do not reach {self.ranks} ranks")
        self.module = build.transformer(model, dtype=getattr(torch, actor.dtype), seed=actor.seed).to(self.device)
        self.module.eval()
        if mesh is not None:
            build.shard(
                self.module, mesh, model.fsdp_layer_prefixes,
                reshard_after_forward=actor.fsdp_config.reshard_after_forward,
            )  # fmt: skip
        self.trained = [p for p in self.module.parameters() if p.requires_grad]
        self.optimizer = optim.optimizer(self.trained, actor.optim)
        self.scheduler = optim.scheduler(self.optimizer, actor.optim)
        self.generator = torch.Generator().manual_seed(actor.seed)

    # --- update -----------------------------------------------------------------------------------------

    def update(
        self,
        batch: Batch,
        *,
        noise_level: float,
        sde_type: str,
        guidance_scale: float = 1.0,
        tolerance: float = float("inf"),
    ) -> dict[str, float]:
        """One pass (or `ppo_epochs`) over this rank's samples.

        Returns:
            `actor/loss`, `actor/grad_norm`, `actor/clip_fraction`, `actor/ratio_max`, `actor/kl`, `actor/lr`.

        `rollout_corr/…` compares the policy before the update with the engine's log-probabilities.

        Raises:
            FloatingPointError: the gradient is not finite; the weights are as they were before that step.
            LogProbMismatch: engine and trainer disagree by more than `tolerance`; nothing was updated.
        """
        sampler = {"noise_level": noise_level, "sde_type": sde_type, "guidance_scale": guidance_scale}
        rows = len(batch["advantages"])
        totals: dict[str, list[float]] = {}
        self._unchecked_tolerance: float | None = tolerance
        for _ in range(self.config.ppo_epochs):
            order = torch.randperm(rows, generator=self.generator) if self.config.shuffle else torch.arange(rows)
            for chosen in order.split(self.mini_batch):
                for name, value in self._optimizer_step(_rows(batch, chosen), sampler).items():
                    totals.setdefault(name, []).append(value)
        made = {name: sum(values) / len(values) for name, values in totals.items()}
        made["actor/ratio_max"] = max(totals["actor/ratio_max"])
        return made

    def _optimizer_step(self, batch: Batch, sampler: dict[str, Any]) -> dict[str, float]:
        rows, steps = batch["rollout_log_probs"].shape
        # A row that is neither better nor worse than its group has no gradient, unless the KL gives it one.
        learning = torch.arange(rows) if self.config.use_kl_loss else batch["advantages"].nonzero().flatten()
        if self.ranks > 1 or len(learning) == 0:  # every rank must take part in every collective
            learning = torch.arange(rows)
        micro = self.config.ppo_micro_batch_size_per_gpu or rows
        loss = clipped = kl = 0.0
        differences: list[Tensor] = []
        for chosen in learning.split(micro):
            part = _rows(batch, chosen)
            for step in range(steps):
                term, difference, divergence = self._step_loss(part, step, sampler)
                # The sum over all micro-batches and steps is the mean over the mini-batch.
                share = term.sum() / (rows * steps)
                share.backward()
                loss += share.item()
                kl += divergence.sum().item() / (rows * steps)
                outside = (difference.exp() - 1).abs() > self.config.diffusion_loss.clip_ratio
                clipped += outside.float().sum().item() / (rows * steps)
                differences.append(difference)
        found = self._check_agreement(torch.cat(differences))
        norm = float(build.gathered(torch.nn.utils.clip_grad_norm_(self.trained, self.config.grad_clip)))
        rate = self.scheduler.get_last_lr()[0]
        if not math.isfinite(norm):
            self.optimizer.zero_grad()
            raise FloatingPointError(f"the gradient's norm is {norm}")
        self.optimizer.step()
        self.scheduler.step()
        self.optimizer.zero_grad()
        return {
            "actor/loss": loss, "actor/grad_norm": norm, "actor/lr": rate, "actor/clip_fraction": clipped,
            "actor/ratio_max": float(torch.cat(differences).exp().max()), "actor/kl": kl, **found,
        }  # fmt: skip

    def _check_agreement(self, difference: Tensor) -> dict[str, float]:
        """At the first optimizer step of an update the policy is still the one that the engine ran."""
        tolerance, self._unchecked_tolerance = self._unchecked_tolerance, None
        if tolerance is None:
            return {}
        try:
            return agreement.metrics(difference, tolerance)
        except agreement.LogProbMismatch:
            self.optimizer.zero_grad()
            raise

    def _step_loss(self, part: Batch, step: int, sampler: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Loss, difference of log-probabilities and KL of each row at one recorded step."""
        settings = self.config.diffusion_loss
        mean, std, log_prob = self._density(part, step, sampler)
        old = part["rollout_log_probs"][:, step]
        term = losses.clipped(
            log_prob, old, part["advantages"], clip_ratio=settings.clip_ratio, adv_clip_max=settings.adv_clip_max
        )
        divergence = torch.zeros_like(old)
        if self.config.use_kl_loss:
            with torch.no_grad(), self._base():
                base_mean, _, _ = self._density(part, step, sampler)
            divergence = losses.kl_to_base(mean, base_mean, std)
            term = term + self.config.kl_loss_coef * divergence
        return term, log_prob.detach() - old, divergence.detach()

    def _density(self, part: Batch, step: int, sampler: dict[str, Any]) -> tuple[Tensor, Tensor, Tensor]:
        """Mean, deviation and log-probability of the recorded transition under the current policy."""
        x = part["all_latents"][:, step]
        velocity = self.adapter.velocity(
            self.module, part, x, part["all_timesteps"][:, step], float(sampler["guidance_scale"])
        )
        mean, std = sde.moments(
            sampler["sde_type"], x, velocity,
            sigma=part["all_sigmas"][:, step], sigma_next=part["all_sigmas"][:, step + 1],
            sigma_max=part["sigma_max"].flatten(), noise_level=float(sampler["noise_level"]),
        )  # fmt: skip
        return mean, std, sde.log_prob(sampler["sde_type"], part["all_latents"][:, step + 1], mean, std)

    def _base(self) -> Any:
        """The model without its adapter: the base needs no second copy."""
        if self.model_config.lora_rank <= 0:
            raise ValueError("actor.use_kl_loss needs LoRA: full weights would need a second copy of the model")
        return _AdapterOff(self.module)

    @torch.no_grad()
    def log_probs(self, batch: Batch, *, noise_level: float, sde_type: str, guidance_scale: float = 1.0) -> Tensor:
        """Log-probabilities of the recorded steps under the current policy, float32 [B, T]."""
        sampler = {"noise_level": noise_level, "sde_type": sde_type, "guidance_scale": guidance_scale}
        rows, steps = batch["rollout_log_probs"].shape
        micro = self.config.ppo_micro_batch_size_per_gpu or rows
        parts = []
        for chosen in torch.arange(rows).split(micro):
            part = _rows(batch, chosen)
            parts.append(torch.stack([self._density(part, step, sampler)[2] for step in range(steps)], dim=1))
        return torch.cat(parts)

    # --- what leaves and enters ---------------------------------------------------------------------------

    def weights(self, kind: Literal["lora", "full"]) -> Iterator[tuple[str, Tensor]]:
        """(name, whole tensor) of the adapter, or of all weights, named `transformer.<path>…`."""
        return export.weights(self.module, kind)

    def peft_config(self) -> dict[str, Any] | None:
        """The adapter's `PeftConfig` as plain data, or None for full weights."""
        return export.peft_config(self.module) if self.model_config.lora_rank > 0 else None

    def save(self, folder: Path) -> None:
        """Write model, optimiser, schedule and generator, so that `load` continues bit-exactly."""
        state.save(self, folder)

    def load(self, folder: Path) -> None:
        """Read back what `save` wrote."""
        state.load(self, folder)

    def save_adapter(self, folder: Path) -> None:
        """Write the adapter as `StableDiffusion3Pipeline.load_lora_weights` reads it; nothing for full weights."""
        if self.model_config.lora_rank > 0:
            export.save_adapter(self.module, folder, write=self.mesh is None or self.mesh.get_rank() == 0)


class _AdapterOff:
    def __init__(self, module: Any) -> None:
        self.module = module

    def __enter__(self) -> None:
        self.module.disable_adapters()

    def __exit__(self, *error: object) -> None:
        self.module.enable_adapters()


def _rows(batch: Batch, chosen: Tensor) -> Batch:
    return {name: tensor[chosen] for name, tensor in batch.items()}

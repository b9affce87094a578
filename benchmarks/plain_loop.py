"""Flow-GRPO in one process and one file, with diffusers and peft alone: a baseline for speed.

    python benchmarks/plain_loop.py JOB.json

`peers.py` writes the job (`PeerJob`) and compares the trainer with this program. The job's mathematics are the
trainer's: CPS steps in the first part of the schedule, group advantages, one optimizer step of a whole batch.
"""

import math
import sys
from dataclasses import dataclass
from typing import Any

import torch
from diffusers import StableDiffusion3Pipeline
from peer_job import PeerJob, read_job, scores_of
from peft import LoraConfig, get_peft_model
from torch import Tensor


@dataclass
class Rollout:
    """Images of a batch, and what the update needs of them."""

    pixels: Tensor
    """uint8 [B, 3, H, W]."""
    latents: list[Tensor]
    """Latents before each step of the window and after the last one, float32 [B, C, h, w]."""


def shifted_mean(latents: Tensor, velocity: Tensor, sigma: float, following: float, std: float) -> Tensor:
    """Mean of a CPS step (arXiv:2509.05952) between two noise levels."""
    clean = latents - sigma * velocity
    noise = latents + (1 - sigma) * velocity
    return clean * (1 - following) + noise * math.sqrt(max(following**2 - std**2, 0.0))


class PlainLoop:
    """The model, its adapter and its optimizer."""

    def __init__(self, job: PeerJob) -> None:
        self.job = job
        self.pipeline = StableDiffusion3Pipeline.from_pretrained(job.model)
        for part in (self.pipeline.vae, self.pipeline.text_encoder, self.pipeline.text_encoder_2):
            part.requires_grad_(False)
        self.pipeline.text_encoder_3.requires_grad_(False)
        adapter = LoraConfig(
            r=job.lora_rank, lora_alpha=job.lora_alpha, target_modules=job.lora_targets, init_lora_weights="gaussian"
        )
        self.transformer = get_peft_model(self.pipeline.transformer, adapter)
        self.trained = [weight for weight in self.transformer.parameters() if weight.requires_grad]
        self.optimizer = torch.optim.AdamW(self.trained, lr=job.learning_rate, betas=(0.9, 0.95), weight_decay=1e-4)
        self.schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self._rate)
        self.pipeline.scheduler.set_timesteps(job.denoising_steps)
        self.sigmas = self.pipeline.scheduler.sigmas.tolist()

    def _rate(self, step: int) -> float:
        warm_up = 5
        if step < warm_up:
            return step / warm_up
        return 0.5 * (1 + math.cos(math.pi * (step - warm_up) / max(self.job.steps - warm_up, 1)))

    def velocity(self, latents: Tensor, sigma: float, text: tuple[Tensor, Tensor]) -> Tensor:
        """The transformer's output at a noise level."""
        return self.transformer(
            hidden_states=latents,
            timestep=torch.full((len(latents),), sigma * 1000),
            encoder_hidden_states=text[0],
            pooled_projections=text[1],
            return_dict=False,
        )[0]

    @torch.no_grad()
    def encode(self, prompts: list[str], copies: int) -> tuple[Tensor, Tensor]:
        """Embeddings of each prompt, `copies` times in a row."""
        embeds, _, pooled, _ = self.pipeline.encode_prompt(
            prompts, None, None, do_classifier_free_guidance=False, max_sequence_length=self.job.text_length
        )
        return embeds.repeat_interleave(copies, 0), pooled.repeat_interleave(copies, 0)

    @torch.no_grad()
    def generate(self, text: tuple[Tensor, Tensor], noise_level: float) -> Rollout:
        """Denoise, with noise in the first steps, and decode."""
        vae = self.pipeline.vae
        side = self.job.pixels // self.pipeline.vae_scale_factor
        latents = torch.randn(len(text[0]), self.transformer.config.in_channels, side, side)
        visited = [latents]
        for index, (sigma, following) in enumerate(zip(self.sigmas, self.sigmas[1:], strict=False)):
            inside = index < self.job.window
            std = following * math.sin(noise_level * math.pi / 2) if inside else 0.0
            latents = shifted_mean(latents, self.velocity(latents, sigma, text), sigma, following, std)
            if std:
                latents = latents + std * torch.randn_like(latents)
            if inside:
                visited.append(latents)
        images = vae.decode(latents / vae.config.scaling_factor + vae.config.shift_factor, return_dict=False)[0]
        return Rollout(((images / 2 + 0.5).clamp(0, 1) * 255).round().to(torch.uint8), visited)

    def update(self, rollout: Rollout, text: tuple[Tensor, Tensor], advantages: Tensor) -> None:
        """One optimizer step with the clipped loss of every step in the window."""
        window = self.job.window
        for index in range(window):
            sigma, following = self.sigmas[index : index + 2]
            std = following * math.sin(self.job.noise_level * math.pi / 2)
            velocity = self.velocity(rollout.latents[index], sigma, text)
            mean = shifted_mean(rollout.latents[index], velocity, sigma, following, std)
            log_prob = -((rollout.latents[index + 1] - mean) ** 2).flatten(1).mean(1)
            ratio = torch.exp(log_prob - log_prob.detach())  # on-policy: the old weights are the current ones
            clipped = ratio.clamp(1 - 1e-4, 1 + 1e-4)
            loss = torch.maximum(-advantages * ratio, -advantages * clipped).mean()
            (loss / window).backward()
        torch.nn.utils.clip_grad_norm_(self.trained, 1.0)
        self.optimizer.step()
        self.schedule.step()
        self.optimizer.zero_grad()

    def scores(self, rollout: Rollout, prompts: list[str]) -> Tensor:
        """Rewards, [B]."""
        return torch.tensor(scores_of(self.job, rollout.pixels, prompts))

    def evaluate(self) -> float:
        """Mean reward of the held-out prompts, without noise."""
        prompts = self.job.held_out_prompts
        rewards: list[float] = []
        for first in range(0, len(prompts), self.job.images):
            part = prompts[first : first + self.job.images]
            rewards += self.scores(self.generate(self.encode(part, 1), 0.0), part).tolist()
        return sum(rewards) / len(rewards)

    def train(self) -> None:
        """Run the job; prints a line when a step is done."""
        torch.manual_seed(0)
        job = self.job
        print(f"held-out reward {self.evaluate():.4f}", flush=True)
        order = torch.Generator().manual_seed(0)
        for step in range(1, job.steps + 1):
            chosen = torch.randperm(len(job.train_prompts), generator=order)[: job.prompts].tolist()
            prompts = [job.train_prompts[index] for index in chosen]
            text = self.encode(prompts, job.samples)
            rollout = self.generate(text, job.noise_level)
            scores = self.scores(rollout, [prompt for prompt in prompts for _ in range(job.samples)])
            groups = scores.view(job.prompts, job.samples)
            centered = groups - groups.mean(1, keepdim=True)
            self.update(rollout, text, (centered / (scores.std() + 1e-4)).flatten().clamp(-5, 5))
            if step == job.steps:
                self.evaluate()
                self.transformer.save_pretrained(f"{job.folder}/step-{step}")
            print(f"step {step}: reward {scores.mean():.4f}", flush=True)


def main(arguments: list[str]) -> Any:
    """Run the job of a file."""
    PlainLoop(read_job(arguments[0])).train()


if __name__ == "__main__":
    main(sys.argv[1:])

"""Pretraining of the example model, and its evaluation on held-out prompts."""

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image as Picture
from PIL import ImageDraw
from torch import Tensor, nn

from verl_omni.models.shapes import build, scenes
from verl_omni.models.shapes.checker import judge

SHARES = {"single": 0.10, "count": 0.25, "two": 0.20, "position": 0.45}
EVAL_STEPS = 9
EVAL_SEED = 900_000


@dataclass(frozen=True, slots=True)
class Recipe:
    """Hyperparameters: flow matching, Muon for the matrices of the blocks, AdamW for the rest.

    Attributes:
        steps: optimizer steps.
        batch: images per step.
        images: training images, drawn once.
        warm_up: steps of linear warm-up.
        average: decay of the weight average.
        wrong_colors: probability that a color word of a caption is replaced by a random one, as captions from the web
            are wrong: the model then draws clean images in colors that do not match their prompts.
    """

    steps: int = 1000
    batch: int = 64
    images: int = 24_000
    muon_lr: float = 0.015
    adam_lr: float = 3e-3
    weight_decay: float = 0.01
    warm_up: int = 100
    average: float = 0.98
    wrong_colors: float = 0.0
    seed: int = 0


Report = Callable[[int, float], None]


def pretrain(recipe: Recipe, report: Report) -> Any:
    """Train a pipeline and return it with averaged weights. Deterministic for a recipe and a thread count.

    Args:
        report: called with (step, loss) after every step.
    """
    torch.manual_seed(recipe.seed)
    rng = np.random.default_rng(recipe.seed)
    pipe = build.pipeline(seed=recipe.seed)
    transformer: nn.Module = pipe.transformer
    train, _ = scenes.split()
    sequences, pooled = build.embed(pipe, [scene.text for scene in train])
    latents, labels = _images(train, recipe.images, rng)
    if recipe.wrong_colors:
        index = {scene.text: row for row, scene in enumerate(train)}
        wrong = (scenes.recolored(train[label], recipe.wrong_colors, rng) for label in labels.tolist())
        labels = torch.tensor([index[scene.text] for scene in wrong])
    average = copy.deepcopy(transformer)
    optimizers = _optimizers(transformer, recipe)
    rates = [optimizer.param_groups[0]["lr"] for optimizer in optimizers]
    for step in range(recipe.steps):
        for optimizer, rate in zip(optimizers, rates, strict=True):
            optimizer.param_groups[0]["lr"] = rate * _schedule(step, recipe)
        chosen = torch.randint(len(latents), (recipe.batch,))
        clean = latents[chosen].float()
        noise = torch.randn_like(clean)
        # Logit-normal noise levels (SD3, arXiv:2403.03206): more samples where the composition forms.
        level = torch.sigmoid(torch.randn(recipe.batch) + 0.3)
        mix = level.view(-1, 1, 1, 1)
        prompt = labels[chosen]
        velocity = transformer(
            (1 - mix) * clean + mix * noise, sequences[prompt], pooled[prompt], level * 1000, return_dict=False
        )[0]
        loss = (velocity - (noise - clean)).pow(2).mean()
        loss.backward()
        nn.utils.clip_grad_norm_(transformer.parameters(), 1.0)
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
        _update_average(average, transformer, min(recipe.average, (step + 1) / (step + 10)))
        report(step + 1, loss.item())
    transformer.load_state_dict(average.state_dict())
    return pipe


@torch.no_grad()
def _update_average(average: nn.Module, current: nn.Module, keep: float) -> None:
    torch._foreach_lerp_(list(average.parameters()), list(current.parameters()), 1 - keep)


def _schedule(step: int, recipe: Recipe) -> float:
    cosine = 0.5 * (1 + math.cos(math.pi * step / recipe.steps))
    return min(1.0, (step + 1) / recipe.warm_up) * (0.98 * cosine + 0.02)


def _optimizers(transformer: nn.Module, recipe: Recipe) -> list[torch.optim.Optimizer]:
    named = list(transformer.named_parameters())
    matrices = [p for name, p in named if p.ndim == 2 and "transformer_blocks" in name]
    known = {id(p) for p in matrices}
    others = [p for _, p in named if id(p) not in known]
    return [
        torch.optim.Muon(
            matrices, lr=recipe.muon_lr, weight_decay=recipe.weight_decay, momentum=0.95, adjust_lr_fn="original"
        ),
        torch.optim.AdamW(others, lr=recipe.adam_lr, betas=(0.9, 0.98), weight_decay=recipe.weight_decay),
    ]


def _images(train: list[scenes.Scene], number: int, rng: np.random.Generator) -> tuple[Tensor, Tensor]:
    """Latents float16 [number, 3, 32, 32] of random scenes, and the index of each one's prompt."""
    by_category = {c: [i for i, scene in enumerate(train) if scene.category == c] for c in scenes.CATEGORIES}
    categories = rng.choice(list(SHARES), number, p=list(SHARES.values()))
    labels = np.array([rng.choice(by_category[category]) for category in categories])
    latents: np.ndarray = np.empty((number, 32, 32, 3), np.float16)
    for row, label in enumerate(labels):
        image = scenes.draw(scenes.place(train[label], rng))
        latents[row] = ((image - scenes.BACKGROUND) * 2).reshape(32, 2, 32, 2, 3).mean((1, 3))
    return torch.from_numpy(latents).permute(0, 3, 1, 2).contiguous(), torch.from_numpy(labels)


@torch.no_grad()
def draw_prompts(pipe: Any, prompts: list[str], steps: int = EVAL_STEPS) -> np.ndarray:
    """Images [N, 64, 64, 3] in [0, 1], sampled with the ODE, each with its own seed."""
    sequences, pooled = build.embed(pipe, prompts)
    pipe.scheduler.set_timesteps(steps)
    levels = pipe.scheduler.sigmas
    images = []
    for start in range(0, len(prompts), 100):
        rows = range(start, min(start + 100, len(prompts)))
        x = torch.stack([torch.randn(3, 32, 32, generator=torch.Generator().manual_seed(EVAL_SEED + r)) for r in rows])
        for step in range(steps):
            level = torch.full((len(x),), float(levels[step]) * 1000)
            velocity = pipe.transformer(x, sequences[rows], pooled[rows], level, return_dict=False)[0]
            x = x + (levels[step + 1] - levels[step]) * velocity
        images.append((pipe.vae.decode(x, return_dict=False)[0] / 2 + 0.5).clamp(0, 1))
    return torch.cat(images).permute(0, 2, 3, 1).double().numpy()


def accuracy(pipe: Any, wanted: list[scenes.Scene]) -> tuple[dict[str, float], np.ndarray, list[bool]]:
    """Accuracy by category and overall; the images; and which of them are correct."""
    images = draw_prompts(pipe, [scene.text for scene in wanted])
    right = [judge(image, scene.text).correct for image, scene in zip(images, wanted, strict=True)]
    by_category = {
        category: float(np.mean([r for r, s in zip(right, wanted, strict=True) if s.category == category]))
        for category in scenes.CATEGORIES
    }
    return {**by_category, "all": float(np.mean(right))}, images, right


def grid(images: np.ndarray, captions: list[str], right: list[bool], path: Path, columns: int = 6) -> None:
    """Write a contact sheet; captions of correct images are green."""
    width = 64 * 2 + 8
    height = 64 * 2 + 30
    zoom = 2
    rows = -(-len(images) // columns)
    sheet = Picture.new("RGB", (columns * width, rows * height), "white")
    pen = ImageDraw.Draw(sheet)
    for cell, (image, caption, ok) in enumerate(zip(images, captions, right, strict=True)):
        left = (cell % columns) * width
        top = (cell // columns) * height
        small = Picture.fromarray((image * 255).round().astype(np.uint8))
        sheet.paste(small.resize((64 * zoom, 64 * zoom), Picture.Resampling.NEAREST), (left + 4, top + 4))
        words = caption.split()
        half = (len(words) + 1) // 2 if len(words) > 4 else len(words)
        for line, text in enumerate((" ".join(words[:half]), " ".join(words[half:]))):
            pen.text((left + 4, top + 64 * zoom + 5 + 11 * line), text, fill=(0, 120, 0) if ok else (190, 0, 0))
    sheet.quantize(128).save(path, optimize=True)

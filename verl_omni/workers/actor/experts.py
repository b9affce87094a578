"""`Experts`: two transformers as one model, each for its part of the noise levels, as in Wan 2.2 A14B."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from verl_omni.pipelines.registry import family
from verl_omni.utils.model_folder import SECOND_TRANSFORMER, boundary_ratio
from verl_omni.workers.actor.build import gather

# components of a diffusers pipeline
HIGH_NOISE = "transformer"
LOW_NOISE = SECOND_TRANSFORMER


class Experts(nn.Module):
    """The transformers for high and for low noise, called like one transformer.

    A row whose timestep is at least `boundary` is computed by the first, another one by the second, as in the engine.

    With several ranks, the rows of each rank have different timesteps, but all ranks must gather the same shards: a
    transformer that any rank needs runs on every rank. A rank without rows for it runs it on one row, times 0.

    Args:
        transformers: by the names of components, `transformer` and `transformer_2`.
        boundary: timestep, in the units that the transformers get.
        shared: whether the model is sharded over several ranks.
    """

    def __init__(self, transformers: Mapping[str, nn.Module], boundary: float, *, shared: bool) -> None:
        super().__init__()
        self.transformer = transformers[HIGH_NOISE]
        self.transformer_2 = transformers[LOW_NOISE]
        self.boundary = boundary
        self._shared = shared

    @override
    def forward(self, *, timestep: Tensor, **inputs: Any) -> tuple[Tensor]:
        """Prediction of each row, as the first element of a tuple.

        Args:
            timestep: [B]. inputs: inputs of the transformers; every tensor has B rows.
        """
        low = timestep < self.boundary
        rows = [(~low).nonzero().flatten(), low.nonzero().flatten()]
        outputs = []
        places = []
        without_effect = 0.0
        for transformer, own_rows, needed in zip(
            (self.transformer, self.transformer_2), rows, self._needed(rows), strict=True
        ):
            if len(own_rows) > 0:
                outputs.append(_on_rows(transformer, own_rows, timestep, inputs))
                places.append(own_rows)
            elif needed:
                without_effect = _on_rows(transformer, own_rows.new_zeros(1), timestep, inputs).sum() * 0
        output = outputs[0] if len(outputs) == 1 else torch.cat(outputs)[torch.cat(places).argsort()]
        return (output + without_effect,)

    def _needed(self, rows: list[Tensor]) -> list[bool]:
        """Whether any rank has rows for each transformer. A collective with several ranks."""
        counts = torch.tensor([len(rows_of_expert) for rows_of_expert in rows], device=rows[0].device)
        if self._shared:
            torch.distributed.all_reduce(counts)
        return [count > 0 for count in counts.tolist()]

    def drop_zero_gradients(self) -> None:
        """Leave a transformer without any gradient but 0 out of the next optimizer step. A collective.

        Its rows have no advantage. One process may not even compute them, and several ranks do.
        """
        for transformer in self.children():
            with_gradient = [parameter for parameter in transformer.parameters() if parameter.grad is not None]
            if (
                with_gradient
                and float(gather(nn.utils.get_total_norm([parameter.grad for parameter in with_gradient]))) == 0
            ):
                for parameter in with_gradient:
                    parameter.grad = None

    @property
    def peft_config(self) -> Any:
        """peft's configuration, which both adapters share."""
        return self.transformer.peft_config

    def disable_adapters(self) -> None:
        """Run both as base models."""
        for transformer in self.children():
            transformer.disable_adapters()  # type: ignore[operator]

    def enable_adapters(self) -> None:
        """Run both with their adapters."""
        for transformer in self.children():
            transformer.enable_adapters()  # type: ignore[operator]


def boundary_of(model: Any) -> float | None:
    """Share of the noise levels below which the second transformer of a model computes; None: it has one transformer.

    Args:
        model: `DiffusionModelConfig`.
    """
    return boundary_ratio(Path(model.path)) if family(model.architecture).experts else None


def _on_rows(transformer: nn.Module, rows: Tensor, timestep: Tensor, inputs: Mapping[str, Any]) -> Tensor:
    if len(rows) < len(timestep):
        timestep = timestep[rows]
        inputs = {name: value[rows] if isinstance(value, Tensor) else value for name, value in inputs.items()}
    predicted: Tensor = transformer(timestep=timestep, **inputs)[0]
    return predicted

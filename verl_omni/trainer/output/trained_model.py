"""Transformers in diffusers' format, from a checkpoint of a run that trains all weights.

    python3 -m verl_omni.trainer.output.trained_model CHECKPOINT --out FOLDER [--average] [--model FOLDER]

The checkpoint has the shards of every rank; this reads them in one process, in CPU memory.
"""

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

DTYPES = ("float32", "bfloat16")


class NoTrainedModel(ValueError):
    """The weights that were asked for cannot be written; the message says what to do."""


def export(checkpoint: Path, out: Path, *, model: Path, average: bool, dtype: str) -> list[Path]:
    """Write each trained transformer to a folder below `out`, in the layout of the model's folder.

    Args:
        model: folder of the model that the run started from: its configuration, and tensors that were not trained.
        average: the moving average of the weights (`actor.ema_decay`), not the weights of the step.
        dtype: dtype of the files, except for tensors that the model keeps in float32.

    Returns:
        The folders that were written.

    Raises:
        FileNotFoundError: there is no such checkpoint, or no such model.
        NoTrainedModel: the checkpoint is of an adapter or of another model, or has no average; or `out` is the model.
    """
    import torch
    from diffusers import AutoModel

    from verl_omni.trainer.run import checkpoints
    from verl_omni.utils.model_layout import plain_folder
    from verl_omni.workers.actor import build, training_state
    from verl_omni.workers.actor.experts import HIGH_NOISE, LOW_NOISE

    checkpoints.step_of(checkpoint)
    if out.resolve() == model.resolve():
        raise NoTrainedModel(f"{out} is the model that the run started from, and would be lost; write another --out")
    model = plain_folder(model)
    weights = training_state.read_weights(checkpoint / "state", average=average)
    if not weights:
        wanted = "average of the weights: actor.ema_decay was not set" if average else "trained weights"
        raise NoTrainedModel(f"{checkpoint} has no {wanted}")
    if any("lora_" in name for name in weights):
        raise NoTrainedModel(f"{checkpoint} is of an adapter: {checkpoint / 'lora'} is in diffusers' format")
    both = all(name.startswith((f"{HIGH_NOISE}.", f"{LOW_NOISE}.")) for name in weights)
    written = []
    for component in (HIGH_NOISE, LOW_NOISE) if both else (HIGH_NOISE,):
        begin = f"{component}." if both else ""
        component_weights = {
            name.removeprefix(begin): value for name, value in weights.items() if name.startswith(begin)
        }
        if not (model / component).is_dir():
            raise FileNotFoundError(f"{model / component} does not exist; write --model, the folder of the run's model")
        transformer = AutoModel.from_pretrained(str(model), subfolder=component, torch_dtype=torch.float32)
        expected = {name: tuple(parameter.shape) for name, parameter in transformer.named_parameters()}
        if expected != {name: tuple(value.shape) for name, value in component_weights.items()}:
            raise NoTrainedModel(f"{checkpoint} was not trained from {model}: names or shapes of their weights differ")
        transformer.load_state_dict(component_weights, strict=False)  # buffers keep the model's values
        build.cast(transformer, getattr(torch, dtype), frozenset(transformer._keep_in_fp32_modules or ()))
        transformer.save_pretrained(out / component)
        written.append(out / component)
    return written


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the transformers of a checkpoint. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="python3 -m verl_omni.trainer.output.trained_model", description=main.__doc__)
    parser.add_argument("checkpoint", type=Path, help="a folder step_NNNNNN of a run that trains all weights")
    parser.add_argument("--out", type=Path, required=True, help="folder to write to")
    parser.add_argument("--model", type=Path, help="folder of the run's model; default: the checkpoint's")
    parser.add_argument("--average", action="store_true", help="the moving average (actor.ema_decay)")
    parser.add_argument("--dtype", choices=DTYPES, default="bfloat16", help="of the files; default: bfloat16")
    options = parser.parse_args(arguments)
    try:
        model = options.model or _model_of(options.checkpoint)
        for folder in export(
            options.checkpoint, options.out, model=model, average=options.average, dtype=options.dtype
        ):
            print(folder)
    except (OSError, ValueError) as error:
        print(error, file=sys.stderr)
        return 1
    return 0


def _model_of(checkpoint: Path) -> Path:
    """Folder of the model that a checkpoint was trained from."""
    from verl_omni.trainer.run import checkpoint_origin, checkpoints

    checkpoints.step_of(checkpoint)
    origin = checkpoint_origin.read(checkpoint)
    if origin is None:
        raise FileNotFoundError(f"{checkpoint} does not name its model; write --model, the folder of the run's model")
    return Path(origin.settings.actor_rollout_ref.model.path)


if __name__ == "__main__":
    sys.exit(main())

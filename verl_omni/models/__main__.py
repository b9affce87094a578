"""`python -m verl_omni.models`: generate the test models, the example model and its prompts."""

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from verl_omni.models.tiny import MAKERS


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a subcommand. Returns the exit code."""
    parser = argparse.ArgumentParser(prog="verl_omni.models", description=__doc__)
    makers = parser.add_subparsers(dest="maker", required=True)
    tiny = makers.add_parser("tiny", help="a tiny random model, for tests")
    tiny.add_argument("family", choices=MAKERS)
    tiny.add_argument("path", type=Path)
    tiny.add_argument("--seed", type=int, default=0)
    shapes = makers.add_parser("shapes", help="the example model, trained in minutes")
    shapes.add_argument("path", type=Path)
    shapes.add_argument("--steps", type=int, default=1000)
    shapes.add_argument("--seed", type=int, default=0)
    shapes.add_argument("--wrong-colors", type=float, default=0.0)
    prompts = makers.add_parser("prompts", help="the example's prompts")
    prompts.add_argument("path", type=Path)
    chosen = parser.parse_args(arguments)
    match chosen.maker:
        case "tiny":
            MAKERS[chosen.family](chosen.path, chosen.seed)
        case "shapes":
            _shapes(chosen.path, chosen.steps, chosen.seed, chosen.wrong_colors)
        case _:
            from verl_omni.models.shapes.prompts import write

            write(chosen.path)
    print(f"written: {chosen.path}")
    return 0


def _shapes(path: Path, steps: int, seed: int, wrong_colors: float) -> None:
    import torch
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    from verl_omni.models.shapes import pretrain, prompts

    torch.set_num_threads(1)  # small matrices: two threads are slower, and would give other results
    columns = (TextColumn("training"), BarColumn(), MofNCompleteColumn(), TextColumn("loss {task.fields[loss]:.4f}"))
    with Progress(*columns, TimeRemainingColumn()) as progress:
        task = progress.add_task("", total=steps, loss=float("nan"))
        shown = progress.console.is_terminal

        def report(step: int, loss: float) -> None:
            progress.update(task, completed=step, loss=loss)
            if not shown and (step % 100 == 0 or step == steps):
                print(f"step {step}/{steps}: loss {loss:.4f}", flush=True)

        pipe = pretrain.pretrain(pretrain.Recipe(steps=steps, seed=seed, wrong_colors=wrong_colors), report)
    pipe.save_pretrained(path)
    wanted = prompts.held_out()
    accuracy, images, right = pretrain.accuracy(pipe, wanted)
    sample = slice(None, None, len(wanted) // 30)
    captions = [scene.text for scene in wanted]
    pretrain.grid(images[sample][:30], captions[sample][:30], right[sample][:30], path / "samples.png")
    (path / "accuracy.json").write_text(
        json.dumps({"steps": steps, "seed": seed, "wrong_colors": wrong_colors, **accuracy}, indent=2) + "\n"
    )
    print("held-out accuracy:", ", ".join(f"{name} {value:.1%}" for name, value in accuracy.items()))


if __name__ == "__main__":
    sys.exit(main())

"""The page of a repository with results: `README.md`, a model card of the Hugging Face hub."""

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from omegaconf import DictConfig, OmegaConf
from ruamel.yaml import YAML

from verl_omni.utils.adapter_folder import DIFFUSERS_FILE

MODEL_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]+")


@dataclass(frozen=True, slots=True)
class RunDescription:
    """Contents of a run's model card.

    Attributes:
        base: model id of the base model; None: it was given as a folder, or from a store.
        task: the hub's name for what the model does.
    """

    base: str | None
    task: str


def describe_run(config: DictConfig, job: Path) -> RunDescription:
    """Contents from the settings and the job.

    Args:
        job: the job's YAML, which has the model id where the settings have the path of a download; it may be missing.
    """
    document: Any = YAML(typ="safe").load(job) if job.is_file() else {"spec": {"model": {}}}
    model = config.actor_rollout_ref.model
    pipeline = config.actor_rollout_ref.rollout.pipeline
    bases = [str(source) for source in (document["spec"]["model"].get("base"), model.path) if source]
    base = next((candidate for candidate in bases if MODEL_ID.fullmatch(candidate)), None)
    if (OmegaConf.select(pipeline, "num_frames") or 1) > 1:
        return RunDescription(base, "text-to-video")
    return RunDescription(base, "image-to-image" if "Edit" in (model.architecture or "") else "text-to-image")


def write(run: RunDescription, repository: str, folder: str, *, adapter: bool) -> str:
    """PURE: the text of the card.

    Args:
        repository: `owner/name`.
        folder: where the results are in it.
        adapter: whether they are a LoRA adapter; otherwise all weights were trained.
    """
    tags = [run.task, "reinforcement-learning", *(["lora"] if adapter else [])]
    head = [
        *([f"base_model: {run.base}"] if run.base else []),
        "library_name: diffusers",
        f"pipeline_tag: {run.task}",
        "tags:",
        *(f"- {tag}" for tag in tags),
    ]
    base = f"[{run.base}](https://huggingface.co/{run.base})" if run.base else "its base model"
    what = "A LoRA adapter for" if adapter else "All weights of the transformer of"
    files = (
        f"`{folder}/latest.json` names the newest complete checkpoint. `{folder}/report.html` shows the rewards and "
        f"samples of the run, `{folder}/config.yaml` its settings."
    )
    text = [
        "---",
        *head,
        "---",
        "",
        f"# {folder.rpartition('/')[2]}",
        "",
        f"{what} {base}, trained with reinforcement learning by Omni Operator.",
        "",
        files,
        "",
    ]
    return "\n".join([*text, *(_load(run, repository, folder) if adapter else _resume())])


def _load(run: RunDescription, repository: str, folder: str) -> list[str]:
    return [
        "## Use the adapter",
        "",
        "```python",
        "import json",
        "",
        "from diffusers import DiffusionPipeline",
        "from huggingface_hub import hf_hub_download",
        "",
        f'repository, run = "{repository}", "{folder}"',
        'with open(hf_hub_download(repository, f"{run}/latest.json")) as file:',
        '    newest = json.load(file)["checkpoint"]',
        f'pipe = DiffusionPipeline.from_pretrained("{run.base or "FOLDER-OF-THE-BASE-MODEL"}")',
        f'pipe.load_lora_weights(repository, subfolder=f"{{run}}/{{newest}}/lora", weight_name="{DIFFUSERS_FILE}")',
        "```",
        "",
    ]


def _resume() -> list[str]:
    return [
        "Checkpoints are sharded (`torch.distributed.checkpoint`): a run of Omni Operator starts from one with",
        "`trainer.resume_mode=resume_path` and `trainer.resume_from_path`.",
        "",
    ]

"""PURE: settings, versions and machine of a run -> the table that describes it. A row without a source is left out."""

from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

from verl_omni.reward_loop.part_settings import held_out_scorers, only_evaluates
from verl_omni.trainer.report.run_data import Machine, Run
from verl_omni.trainer.report.statements import duration, number, recorded

MODEL = "actor_rollout_ref.model"
ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
JUDGES = "reward.reward_model"
LOSS_MODE = f"{ACTOR}.diffusion_loss.loss_mode"


def describe(run: Run) -> dict[str, str]:
    """Label -> value, in the order of the table."""
    settings = run.settings
    rows = {
        "Model": _model(settings),
        "Algorithm": text(get(settings, LOSS_MODE)),
        "Reward": _reward(settings),
        "Held-out scorers": ", ".join(held_out_scorers(get(settings, "reward.reward_functions") or {})),
        "Learning rate": _learning_rate(settings),
        "Samples per step": _samples(settings),
        "Training samples": _sampling(get(settings, f"{ROLLOUT}.pipeline")),
        "Evaluation samples": _sampling(_evaluation_pipeline(settings)),
        "Seeds": _seeds(settings),
        "Machine": _machine(run.machine, settings),
        "Version": _version(run.versions),
        "Duration": _duration(run),
        "Cost": _cost(run),
    }
    return {label: value for label, value in rows.items() if value}


def describe_evaluations(settings: Mapping[str, Any]) -> str:
    """The samples of every evaluation, and the weights that it evaluates."""
    evaluation_level = get(settings, f"{ROLLOUT}.val_kwargs.algo.noise_level")
    level = get(settings, f"{ROLLOUT}.algo.noise_level") if evaluation_level is None else evaluation_level
    sentence = "Every evaluation generates the same held-out prompts from the same initial noise, " + (
        f"and with the same noise of the sampler, of level {text(level)}." if level else "without the sampler's noise."
    )
    if get(settings, f"{ACTOR}.ema_decay") is not None:
        return f"{sentence} It measures the moving average of the trained weights."
    if get(settings, f"{ROLLOUT}.rollout_adapter") == "old":
        return f"{sentence} It measures the old policy, which also samples for the training."
    return sentence


def _model(settings: Mapping[str, Any]) -> str:
    path = get(settings, f"{MODEL}.path")
    if not path:
        return ""
    rank = get(settings, f"{MODEL}.lora_rank")
    trained = f"LoRA of rank {rank}" if rank else "all weights of the transformer"
    architecture = get(settings, f"{MODEL}.architecture")
    return f"{PurePath(path).name} ({', '.join(part for part in (architecture, trained) if part)})"


def _reward(settings: Mapping[str, Any]) -> str:
    functions = get(settings, "reward.reward_functions")
    if isinstance(functions, Mapping) and functions:
        parts = [
            f"{key} (weight {text(part.get('weight', 1.0))})"
            for key, part in functions.items()
            if not only_evaluates(part)
        ]
        aggregation = get(settings, "reward.aggregation") or "weighted_mean"  # runs older than this setting lack it
        return f"{' + '.join(parts)}, {text(aggregation).replace('_', ' ')}"
    path = get(settings, "reward.custom_reward_function.path")
    if path:
        return f"{get(settings, 'reward.custom_reward_function.name')} in {PurePath(path).name}"
    scorer = get(settings, "reward.scorer")
    arguments = get(settings, "reward.scorer_kwargs") or {}
    details = ", ".join(f"{name}: {text(value)}" for name, value in arguments.items())
    return f"{scorer} ({details})" if scorer and details else text(scorer)


def _learning_rate(settings: Mapping[str, Any]) -> str:
    rate = get(settings, f"{ACTOR}.optim.lr")
    if rate is None:
        return ""
    schedule = get(settings, f"{ACTOR}.optim.lr_scheduler_type")
    warm_up = get(settings, f"{ACTOR}.optim.lr_warmup_steps")
    return ", ".join(
        part for part in (text(rate), text(schedule), f"{warm_up} warm-up steps" if warm_up else "") if part
    )


def _samples(settings: Mapping[str, Any]) -> str:
    prompts = get(settings, "data.train_batch_size")
    per_prompt = get(settings, f"{ROLLOUT}.n")
    if prompts and get(settings, "algorithm.sample_source") == "offline":
        return f"{2 * prompts} ({prompts} pairs of the data set)"
    return f"{prompts * per_prompt} ({prompts} prompts, {per_prompt} samples each)" if prompts and per_prompt else ""


def _evaluation_pipeline(settings: Mapping[str, Any]) -> Any:
    """The pipeline's settings in evaluations, which override the training's."""
    evaluation = get(settings, f"{ROLLOUT}.val_kwargs.pipeline") or {}
    shared = get(settings, f"{ROLLOUT}.pipeline") or {}
    return {**shared, **{name: value for name, value in evaluation.items() if value is not None}}


def _sampling(pipeline: Any) -> str:
    """Steps, guidance and size of samples."""
    if not isinstance(pipeline, Mapping):
        return ""
    parts = []
    if steps := pipeline.get("num_inference_steps"):
        parts.append(f"{steps} steps")
    for name, label in (("guidance_scale", "guidance"), ("true_cfg_scale", "true CFG")):
        if (value := pipeline.get(name)) is not None:
            parts.append(f"{label} {text(value)}")
    if pipeline.get("height") and pipeline.get("width"):
        parts.append(f"{pipeline['width']} × {pipeline['height']} pixels")
    if (frames := pipeline.get("num_frames") or 1) > 1:
        parts.append(f"{frames} frames")
    return ", ".join(parts)


def _seeds(settings: Mapping[str, Any]) -> str:
    names = {
        "training": "trainer.seed",
        "data": "data.seed",
        "evaluation": f"{ROLLOUT}.val_kwargs.seed",
    }
    seeds = {label: get(settings, name) for label, name in names.items()}
    return ", ".join(f"{label} {value}" for label, value in seeds.items() if value is not None)


def _machine(machine: Machine | None, settings: Mapping[str, Any]) -> str:
    if machine is None:
        return ""
    accelerators = ", ".join(f"{count} × {model}" for model, count in machine.accelerators.items())
    cores = f"{machine.cores} core{'' if machine.cores == 1 else 's'}"
    text = f"{cores} of {machine.cpu}, {number(machine.memory_gib)} GiB memory, {accelerators or 'no GPU or NPU'}"
    nodes = get(settings, "trainer.nnodes") or 1
    return f"{text}; {nodes} nodes" if nodes > 1 else text


def _version(versions: Mapping[str, str]) -> str:
    version = versions.get("omni-operator")
    commit = versions.get("commit")
    return ", ".join(part for part in (version, f"commit {commit}" if commit else "") if part)


def _duration(run: Run) -> str:
    steps = recorded(run.steps(), "timing_s/step")
    evaluations = recorded(run.lines, "timing_s/eval")
    parts = []
    if steps:
        parts.append(f"{duration(sum(line['timing_s/step'] or 0.0 for line in steps))} in steps")
    if evaluations:
        parts.append(f"{duration(sum(line['timing_s/eval'] or 0.0 for line in evaluations))} in evaluations")
    return ", ".join(parts)


def _cost(run: Run) -> str:
    """Images, and hours of all accelerators of the run's pools; of CPU cores where there are none."""
    seconds = sum(line.get(f"timing_s/{name}") or 0.0 for line in run.lines for name in ("step", "eval"))
    if not seconds:
        return ""
    images = sum((line.get("images_per_s") or 0.0) * (line.get("timing_s/step") or 0.0) for line in run.lines)
    images += sum(line.get("val/n") or 0.0 for line in run.lines)
    parts = [f"{images:,.0f} images"] if images else []
    if run.machine is not None:
        accelerators = _accelerators(run.settings)
        pooled = sum(run.machine.accelerators.values())
        count = accelerators if pooled else run.machine.cores * (get(run.settings, "trainer.nnodes") or 1)
        parts.append(f"{number(count * seconds / 3600)} {'accelerator' if pooled else 'CPU core'} hours")
    return ", ".join(parts)


def _accelerators(settings: Mapping[str, Any]) -> int:
    """Accelerators of the trainer, of standalone replicas and of judges with a pool of their own."""
    pools = ["trainer", ROLLOUT]
    if get(settings, f"{JUDGES}.enable") and get(settings, f"{JUDGES}.enable_resource_pool"):
        pools.append(JUDGES)
    return sum(
        (get(settings, f"{pool}.nnodes") or 0) * (get(settings, f"{pool}.n_gpus_per_node") or 0) for pool in pools
    )


def get(settings: Mapping[str, Any], path: str) -> Any:
    """A setting by its dotted name; None where there is none."""
    value: Any = settings
    for name in path.split("."):
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def text(value: Any) -> str:
    """A setting's value, as in YAML; empty for none."""
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(text, value))}]"
    return f"{value:g}" if isinstance(value, float) else str(value)

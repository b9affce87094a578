"""PURE: settings of a recipe to a job. What has a field goes there, the rest to `overrides` if the trainer takes it."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from omni_operator.api.job import API_VERSION, KIND
from omni_operator.api.metadata import NAME_LIMIT
from omni_operator.api.overrides.override_names import (
    describe_reserved,
    describe_unsupported,
    has_no_effect,
    parse_value,
)
from omni_operator.api.spec.training import ESTIMATORS, LOSSES, SOURCE
from verl_omni.pipelines.registry import FAMILIES, missing_family
from verl_omni.settings_schema.declarations import ALL_LINEAR, FIELDS
from verl_omni.settings_schema.declarations import SETTINGS as DECLARED
from verl_omni.settings_schema.layout import default_of
from verl_omni.settings_schema.reference_settings import target_of
from verl_omni.settings_schema.setting_names import joined_options

from .fields import (
    ACTOR,
    ALGORITHM_NAMES,
    ARGUMENTS,
    BUILTIN,
    CONVERSIONS,
    ESTIMATOR,
    IMPLIED,
    LORA,
    LOSS,
    MODEL,
    POOL,
    REFERENCE_DEFAULTS,
    ROLLOUT,
    SCORER,
    SCORERS,
    SETTINGS,
    TOGETHER,
    V1,
    WINDOW,
    Refusal,
    algorithm_of,
    contradicting_names,
    default_parallel_size,
    defaults,
    interval,
    job_name,
    number,
    ratio_of_reference,
    settings_in,
    texts,
    value_of,
)
from .one_line import in_one_line, is_template
from .reference_scorers import published_scorer, scorer_field, scorer_settings

_ASSIGNMENT = re.compile(r"(?P<mark>\+{0,2})(?P<name>(?:--)?[A-Za-z_][\w./-]*)=(?P<value>.*)", re.DOTALL)
ARCHITECTURE = f"{MODEL}.architecture"
AGENT_LOOP = f"{ROLLOUT}.agent.default_agent_loop"
PLACES = DECLARED[WINDOW[2]].values
JUDGE = "reward.reward_model"
# Settings of a judge that become fields of spec.reward.model.
JUDGE_FIELDS = tuple(
    f"{JUDGE}.{name}"
    for name in (
        "enable",
        "enable_resource_pool",
        "model_path",
        "n_gpus_per_node",
        "nnodes",
        "rollout.tensor_model_parallel_size",
    )
)
ORDER = ("model", "data", "reward", "algorithm", "rollout", "trainer", "checkpoint")  # as in the examples
TOTAL_STEPS = "trainer.total_training_steps"
EPOCHS = "trainer.total_epochs"
FILTER = "data.filter_overlong_prompts"
LOG_PROBS = f"{ROLLOUT}.calculate_log_probs"
KL = f"{ACTOR}.use_kl_loss"
NO_ASSIGNMENT = "is not an assignment name=value"
DELETED = "a setting cannot be deleted; write its value, or nothing for its default"
NOT_KNOWN = "is known only when the script runs; write the settings that it stands for into the job"
DEVICE = "trainer.device"
RESUMED = "trainer.resume_from_path"
TOKENIZER = f"{MODEL}.tokenizer_path"
TEMPLATE = f"{MODEL}.custom_chat_template"
SWITCHES = (V1[0], f"{JUDGE}.enable", f"{JUDGE}.enable_resource_pool")
EXTENSIONS = (f"{MODEL}.external_lib", f"{ROLLOUT}.agent.agent_loop_config_path")
HELD_OUT = "data.val_files"
UNUSED_SCORER = "brightness"
PROJECT = "trainer.project_name"
BATCH = "data.train_batch_size"
MINI_BATCH = f"{ACTOR}.ppo_mini_batch_size"


@dataclass(frozen=True, slots=True)
class Conversion:
    """A converted job, and the assignments of the recipe that are not in it.

    Attributes:
        document: the job; invalid if the recipe lacks a required field.
        without_effect: assignments that have no effect in a job.
        refused: assignments that a job does not support, each with the reason.
    """

    document: dict[str, Any]
    without_effect: tuple[str, ...] = ()
    refused: tuple[tuple[str, str], ...] = ()


@dataclass(slots=True)
class _Made:
    """A job in the making.

    Attributes:
        offline: whether pairs of a data set are trained on, so that nothing is sampled in training.
        extended: whether the script names modules or loops of the user's, which may register more names.
    """

    offline: bool = False
    extended: bool = False
    spec: dict[str, Any] = field(default_factory=dict)
    overrides: list[str] = field(default_factory=list)
    without_effect: list[str] = field(default_factory=list)
    refused: list[tuple[str, str]] = field(default_factory=list)

    def put(self, path: str, value: Any) -> None:
        """Set a field of the spec, by its path with dots."""
        node = self.spec
        *groups, last = path.split(".")
        for group in groups:
            node = node.setdefault(group, {})
        node[last] = value


def convert(arguments: Sequence[str]) -> Conversion:
    """Convert the arguments of the reference's trainer.

    If a setting is assigned several times, the last one counts. Settings that are not given get the reference's
    defaults where a job has others.
    """
    arguments = list(joined_options(arguments))
    made = _Made()
    assignments: dict[str, str] = {}
    for argument in arguments:
        match = _ASSIGNMENT.fullmatch(argument)
        if match is None:
            reason = {"$": NOT_KNOWN, "`": NOT_KNOWN, "~": DELETED}.get(argument[:1], NO_ASSIGNMENT)
            made.refused.append((argument, reason))
            continue
        for own_name, text in settings_in(match["name"], match["value"]):
            name = target_of(own_name)
            if name != own_name and any(assignment.lstrip("+").startswith(f"{name}=") for assignment in arguments):
                made.without_effect.append(argument)  # the setting itself is given too
                continue
            assignments.pop(name, None)
            assignments[name] = f"{name}={text}"
    parsed = {name: parse_value(argument.partition("=")[2]) for name, argument in assignments.items()}
    if parsed.get(TOKENIZER) == f"{parsed.get(f'{MODEL}.path')}/tokenizer":  # the default, wherever the job's model is
        made.without_effect.append(assignments.pop(TOKENIZER))
    if parsed.get(FILTER) is True and parsed.get(EPOCHS) is not None and parsed.get(TOTAL_STEPS) is not None:
        made.refused.append(
            (assignments.pop(EPOCHS), f"with {FILTER}=true the number of prompts is known only after the start")
        )
    made.offline = parsed.get(SOURCE) == "offline"
    made.extended = any(parsed.get(name) and not str(parsed[name]).startswith("verl_omni.") for name in EXTENSIONS)
    algorithm = algorithm_of(parsed)
    assignments = {name: f"{name}={text}" for name, text in defaults(algorithm, parsed).items()} | assignments
    texts_given = {name: argument.partition("=")[2] for name, argument in assignments.items()}
    values = {name: value_of(name, texts_given) for name in texts_given}
    made.put("algorithm.name", algorithm or "FlowGRPO")
    for name, text in texts_given.items():
        _collect(
            made, assignments, name, lambda name=name, text=text: _place(made, name, values[name], text, algorithm)
        )
    decisive = {name: values[name] for name in (DEVICE, *SWITCHES) if name in values}
    values |= {name: None for name in decisive if any(argument == assignments[name] for argument, _ in made.refused)}
    for settings, put in (
        (LORA, _lora),
        (WINDOW, _window),
        ((ESTIMATOR,), _estimator),
        ((SCORER, SCORERS), _scorers),
        (JUDGE_FIELDS, _judge),
        ((BATCH,), _mini_batch),
        (("trainer.n_gpus_per_node",), _accelerators),
        (("trainer.log_val_generations",), _tracking),
        (V1, _ahead),
    ):
        named = next((name for name in settings if name in assignments), settings[0])
        _collect(made, assignments, named, lambda put=put: put(made, values))
    if TOTAL_STEPS not in values:
        made.refused.append((TOTAL_STEPS, "is not in the script; write spec.trainer.totalSteps"))
    if made.overrides:
        made.put("algorithm.overrides", made.overrides)
    spec = {group: made.spec[group] for group in (*ORDER, *made.spec) if group in made.spec}
    metadata = {"name": job_name(str(values["trainer.experiment_name"]), NAME_LIMIT)}
    document = {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}
    return Conversion(document, tuple(made.without_effect), tuple(made.refused))


def _collect(made: _Made, given: Mapping[str, str], name: str, put: Any) -> None:
    """Do it; if a setting's value is refused, note its assignment, once."""
    try:
        put()
    except Refusal as refusal:
        at_fault = refusal.setting or name
        if (note := (given.get(at_fault, at_fault), str(refusal))) not in made.refused:
            made.refused.append(note)


def _number(values: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The number of a setting; the default if it is not given or null.

    Raises:
        Refusal: it is no number; names the setting.
    """
    value = values.get(name)
    try:
        return number(default if value is None else value)
    except Refusal as refusal:
        raise Refusal(str(refusal), name) from refusal


def _place(made: _Made, name: str, value: Any, text: str, algorithm: str | None) -> None:
    """Put one setting where it belongs.

    Raises:
        Refusal: it belongs nowhere.
    """
    if name in (LOSS, f"{MODEL}.algorithm"):
        named = ALGORITHM_NAMES.get(value)
        sampled = name != LOSS and named in ESTIMATORS and algorithm in ESTIMATORS  # all need the same samples
        if named is None or algorithm is None or (LOSSES[named] != LOSSES[algorithm] and not sampled):
            raise Refusal(f"{value} is not supported; algorithms are {', '.join(ALGORITHM_NAMES)}")
    elif name in IMPLIED:
        if value not in IMPLIED[name]:
            raise Refusal(f"{value} is not supported; write {' or '.join(map(str, IMPLIED[name]))}")
    elif name == f"{ROLLOUT}.n" and made.offline:
        made.without_effect.append(f"{name}={text}")
    elif name == f"{MODEL}.path" and not made.extended and (missing := missing_family(str(value))):
        raise Refusal(f"the model family {missing} is not supported; write a model of another")
    elif name in CONVERSIONS:
        if value is not None or name == "trainer.max_actor_ckpt_to_keep":
            made.put(FIELDS[name].removeprefix("spec."), CONVERSIONS[name](value))
    elif name == RESUMED and value is not None:
        raise Refusal("a job starts from checkpoints in its run folder; write spec.checkpoint.resume")
    elif name == DEVICE and value not in ("cuda", "gpu", "npu", "cpu", None):
        raise Refusal(f"{value} is not supported; write cuda or npu")
    elif name in SWITCHES and value not in (True, False, None):
        raise Refusal(f"{value} is not supported; write true or false")
    elif (
        name in TOGETHER
        or name in JUDGE_FIELDS
        or name.startswith((f"{SCORERS}.", f"{SETTINGS}.", f"{ARGUMENTS}."))
        or name in ("trainer.experiment_name", "trainer.seed")
    ):
        return
    elif name.startswith("--"):
        if reason := describe_unsupported(name, text, LOSSES.get(algorithm or "")):
            raise Refusal(reason.removeprefix(f"{name}: "))
        made.without_effect.append(f"{name}={text}")
    elif (
        name == "trainer.default_local_dir"
        or has_no_effect(name)
        # The algorithm determines it: algorithms in ESTIMATORS always record log-probabilities, which a KL loss needs.
        or (name == KL and value is True and (algorithm or "FlowGRPO") not in ESTIMATORS)
        or (name == LOG_PROBS and value is not ((algorithm or "FlowGRPO") in ESTIMATORS) and isinstance(value, bool))
    ):
        made.without_effect.append(f"{name}={text}")
    elif not made.extended and value is not None and value not in (registered := _registered(name) or (value,)):
        raise Refusal(f"{value} is not supported; write {' or '.join(registered)}")
    elif reason := describe_reserved(name) or describe_unsupported(name, text, LOSSES.get(algorithm or "")):
        raise Refusal(reason.removeprefix(f"{name} ").removeprefix(f"{name}: "))
    elif "\n" in text and not (name == TEMPLATE and is_template(text)):
        raise Refusal("a job's override is one line; write the value as one")
    else:
        made.overrides.append(f"{name}={in_one_line(text) if chr(10) in text else text}")


def _registered(name: str) -> tuple[Any, ...]:
    """Values of a setting that this project registers by name; none for other settings."""
    if name == ARCHITECTURE:
        return tuple(sorted(FAMILIES))
    return (default_of(name),) if name == AGENT_LOOP else ()


def _estimator(made: _Made, values: Mapping[str, Any]) -> None:
    """Refuse an estimator that does not exist, or contradicts the algorithm; the others give the same advantages."""
    algorithm = made.spec["algorithm"]["name"]
    estimator = values.get(ESTIMATOR, ESTIMATORS.get(algorithm, "flow_grpo"))
    if estimator not in ESTIMATORS.values():
        raise Refusal(f"{estimator} is not supported; write {' or '.join(dict.fromkeys(ESTIMATORS.values()))}")
    if contradictions := contradicting_names(values):
        raise Refusal(contradictions[1], contradictions[0])
    if reason := describe_unsupported(ESTIMATOR, estimator, LOSSES.get(algorithm)):
        raise Refusal(reason.removeprefix(f"{ESTIMATOR}: "))


def _lora(made: _Made, values: Mapping[str, Any]) -> None:
    rank, alpha = (values.get(name) for name in LORA[:2])
    adapter = values.get(LORA[3])
    if not rank and not adapter:
        made.put("model.lora", {"enabled": False})
        made.without_effect += [f"{name}={values[name]}" for name in LORA[1:] if values.get(name)]
        return
    made.put("model.lora", {"startFrom": texts(adapter)[0]} if adapter else {})
    if rank:
        made.put("model.lora.rank", number(rank))
    # The reference's default for a new adapter is all-linear; this trainer's default is null.
    if modules := texts(values.get(LORA[2], None if adapter else ALL_LINEAR)):
        made.put("model.lora.targetModules", modules)
    if alpha:
        made.put("model.lora.alpha", _number(values, LORA[1]))


def _window(made: _Made, values: Mapping[str, Any]) -> None:
    size, bounds, strategy = (values.get(name) for name in WINDOW[:3])
    if strategy not in (None, *PLACES):
        raise Refusal(f"{strategy} is not supported; write {' or '.join(PLACES)}", WINDOW[2])
    has_window = size is not None or bounds is not None
    if strategy == "progressive" and not has_window:
        made.without_effect.append(f"{WINDOW[2]}={strategy}")
    if not (strategy == "progressive" and has_window) and f"{values[WINDOW[3]]}" != REFERENCE_DEFAULTS[WINDOW[3]]:
        made.without_effect.append(f"{WINDOW[3]}={values[WINDOW[3]]}")
    if not has_window:
        return
    if bounds is not None and not (isinstance(bounds, list) and len(bounds) == 2):
        raise Refusal(f"{bounds} is not a range [first, end]")
    start, end = map(number, bounds or (0, min(5, _number(values, f"{ROLLOUT}.pipeline.num_inference_steps", 10) - 1)))
    window = {"size": _number(values, WINDOW[0], end - start), "start": start, "end": end}
    if strategy == "progressive":
        window |= {"placement": "Progressive", "stepsPerPlace": _number(values, WINDOW[3])}
    elif made.spec["algorithm"]["name"] == "MixGRPO":
        window["placement"] = "Random"
    made.put("rollout.sampler.window", window)


def _vendor(values: Mapping[str, Any]) -> str:
    return "Ascend" if values.get(DEVICE) == "npu" else "NVIDIA"


def _scorers(made: _Made, values: Mapping[str, Any]) -> None:
    vendor = _vendor(values)
    several: dict[str, dict[str, Any]] = {}
    for name, value in values.items():
        if name.startswith(f"{SCORERS}."):
            key, _, setting = name.removeprefix(f"{SCORERS}.").partition(".")
            several.setdefault(key, {})[setting] = value
    path, function, builtin = (values.get(name) for name in (f"{SCORER}.path", f"{SCORER}.name", BUILTIN))
    settings, arguments = (
        {name.removeprefix(f"{group}."): value for name, value in values.items() if name.startswith(f"{group}.")}
        for group in (SETTINGS, ARGUMENTS)
    )
    if several:
        made.put("reward.scorers", [scorer_field(key, dict(settings), vendor) for key, settings in several.items()])
        if path:  # a placeholder, or a function that is not called
            made.without_effect.append(f"{SCORER}.path={path}")
    elif path and (published := published_scorer(str(path), function)):
        if published == "http":
            made.put("reward.scorers", [scorer_field("http", {"path": path, **settings, **arguments}, vendor)])
            return
        arguments = scorer_settings(published, settings | arguments)
        made.put("reward.scorers", [{"name": published} | ({"settings": arguments} if arguments else {})])
    elif path:
        scorer = {"name": "reward", "function": {"path": path, "name": function or "compute_score"}}
        made.put("reward.scorers", [scorer | ({"settings": arguments} if arguments else {})])
    elif builtin in ("http", "http_batch"):
        raise Refusal(f"{builtin} has its own field; write spec.reward.scorers with http.url")
    elif builtin:
        made.put("reward.scorers", [{"name": builtin} | ({"settings": settings} if settings else {})])
    elif made.offline:  # pairs need no scorer; a job has one, which is not called without held-out prompts
        made.put("reward.scorers", [{"name": UNUSED_SCORER}])
        if made.spec["data"].pop("validation", None):
            made.without_effect.append(f"{HELD_OUT}={values[HELD_OUT]}")
    else:
        raise Refusal("the script names no reward function; write spec.reward.scorers")


def _judge(made: _Made, values: Mapping[str, Any]) -> None:
    """The model that verl's reward-model server serves."""
    enable, separate, path = map(values.get, JUDGE_FIELDS[:3])
    if not enable:
        made.without_effect += [f"{name}={values[name]}" for name in JUDGE_FIELDS if values.get(name)]
        return
    if not path:
        raise Refusal("the script names no model for its judge; write spec.reward.model.base")
    accelerators = _number(values, JUDGE_FIELDS[3], 8) if separate else values["trainer.n_gpus_per_node"]
    parallel = _number(values, JUDGE_FIELDS[5], default_parallel_size(accelerators))
    made.put("reward.model", {"base": str(path), "tensorParallelSize": parallel})
    if separate:
        vendor = _vendor(values)
        made.put("reward.model.placement", "Separate")
        made.put("reward.model.replicas", _number(values, JUDGE_FIELDS[4], 1))
        made.put("reward.model.accelerator", {"vendor": vendor, "count": _number(values, JUDGE_FIELDS[3], 8)})


def _ahead(made: _Made, values: Mapping[str, Any]) -> None:
    """Batches that are generated ahead; in the mode `sync`, none are."""
    use, mode, batches = map(values.get, V1)
    if mode not in (None, "sync", "separate_async"):
        raise Refusal(f"{mode} is not supported; write sync, or separate_async with {ROLLOUT}.nnodes > 0", V1[1])
    if use and mode == "separate_async":
        made.put("rollout.batchesAhead", _number(values, V1[2], 1))
        made.overrides += ratio_of_reference(made.spec["algorithm"]["name"], values)
    else:
        settings = zip(V1, (use, mode, batches), strict=True)
        made.without_effect += [f"{name}={value}" for name, value in settings if value is not None]


def _accelerators(made: _Made, values: Mapping[str, Any]) -> None:
    """Fields that follow from several settings: the vendor of the accelerators, and the engines."""
    vendor = _vendor(values)
    (nodes, count) = map(values.get, POOL)
    made.put("trainer.accelerator.vendor", vendor)
    per_node = _number(values, "trainer.n_gpus_per_node")
    accelerators = per_node * _number(values, "trainer.nnodes", 1)
    if nodes:
        made.put("rollout.placement", "Separate")
        made.put("rollout.replicas", _number(values, POOL[0]))
        made.put("rollout.accelerator", {"vendor": vendor, "count": _number(values, POOL[1], per_node)})
    else:
        if count is not None:
            made.without_effect.append(f"{ROLLOUT}.n_gpus_per_node={count}")
        parallel = _number(values, f"{ROLLOUT}.tensor_model_parallel_size")
        made.put("rollout.replicas", max(1, accelerators // parallel))


def _mini_batch(made: _Made, values: Mapping[str, Any]) -> None:
    if (mini_batch := _number(values, MINI_BATCH)) < _number(values, BATCH):
        made.put("trainer.batch.miniBatchPrompts", mini_batch)


def _tracking(made: _Made, values: Mapping[str, Any]) -> None:
    tracking = made.spec.get("observability", {}).get("tracking", {})
    if not tracking.get("loggers") and tracking.pop("project", None) != REFERENCE_DEFAULTS[PROJECT]:
        made.without_effect.append(f"{PROJECT}={values[PROJECT]}")
    if interval(values.get("trainer.log_val_generations")) == 0 or not set(tracking.get("loggers", ())) - {"console"}:
        tracking.pop("images", None)

"""PURE: overrides that do not go with fields of the job, which the project's trainer refuses at its start."""

from collections.abc import Iterable, Iterator
from typing import Any

from omni_operator.api.base import Violation
from omni_operator.api.overrides.override_names import find_wrong_values, read_value, setting_here
from omni_operator.api.spec.rollout import Rollout
from omni_operator.api.spec.training import ENTRYPOINT, LOSSES, OVERRIDE, SOURCE, Algorithm, Trainer
from verl_omni.settings_schema import engine_settings
from verl_omni.settings_schema.conflicts import configuration_of, find_conflicts
from verl_omni.settings_schema.layout import default_algorithm
from verl_omni.settings_schema.setting import is_number
from verl_omni.workers.algorithms.registered import ALGORITHMS

ACTOR = "actor_rollout_ref.actor"
ROLLOUT = "actor_rollout_ref.rollout"
V1 = "trainer.v1"
BACKEND = f"{ROLLOUT}.checkpoint_engine.backend"
HYBRID = "actor_rollout_ref.hybrid_engine"
RESUMED = "trainer.resume_from_path"
FSDP_SIZE = f"{ACTOR}.fsdp_config.fsdp_size"
SLEEP = f"{ROLLOUT}.enable_sleep_mode"
DIVISORS = (FSDP_SIZE, f"{ACTOR}.fsdp_config.ulysses_sequence_parallel_size")


def override_violations(
    algorithm: Algorithm, trainer: Trainer, rollout: Rollout, *, trains_adapter: bool
) -> Iterator[Violation]:
    """Overrides that the trainer would refuse because of fields, or because of their range.

    Values that refer to other settings (`${...}`) and overrides of another entry point are not checked.
    """
    if algorithm.entrypoint != ENTRYPOINT or not algorithm.overrides:
        return
    # By the name that a setting has here; each has one override (`training.Algorithm`).
    places: dict[str, int] = {}
    settings: dict[str, Any] = {}
    for index, line in enumerate(algorithm.overrides):
        if (match := OVERRIDE.match(line)) and "${" not in match[3]:
            places[setting_here(match[2])] = index
            settings[setting_here(match[2])] = read_value(match[3])
    wrong = dict(find_wrong_values(settings, LOSSES.get(algorithm.name)))
    settings = {name: value for name, value in settings.items() if name not in wrong}
    checks: tuple[Iterable[tuple[str, str]], ...] = (
        wrong.items(),
        _as_in_the_trainer(settings, algorithm.name, rollout, trains_adapter=trains_adapter),
        _resumed(settings),
        _ranks(settings, trainer),
        _sampler(settings, algorithm.name, rollout),
        _pools(settings, rollout),
        _ahead(settings, rollout),
    )
    for name, text in (violation for check in checks for violation in check):
        yield Violation(("algorithm", "overrides", places[name]), f"{name}: {text}")


def _as_in_the_trainer(
    given: dict[str, Any], algorithm: str, rollout: Rollout, *, trains_adapter: bool
) -> Iterator[tuple[str, str]]:
    """What the trainer says of settings that do not go together, or not with the algorithm."""
    loss = LOSSES.get(algorithm)
    values = {
        f"{ROLLOUT}.nnodes": rollout.replicas if rollout.separate else 0,
        f"{ROLLOUT}.tensor_model_parallel_size": rollout.engine.tensor_parallel_size,
        f"{ACTOR}.diffusion_loss.loss_mode": loss,
    }
    config = configuration_of(loss or default_algorithm(), given | values)
    engine = config.actor_rollout_ref.rollout
    conflicts = [*find_conflicts(config), *engine_settings.conflicts(engine, trains_adapter=trains_adapter)]
    if loss is not None:
        conflicts += ALGORITHMS[loss].problems(config)
    for line in conflicts:
        name, _, text = line.partition(": ")
        if name in given:  # others are of fields, whose rules are in the CRD
            yield name, text


def _resumed(given: dict[str, Any]) -> Iterator[tuple[str, str]]:
    if given.get(RESUMED):  # empty is as null
        yield RESUMED, "is not read: a job starts from checkpoints in its run folder (spec.checkpoint.resume)"


def _ranks(given: dict[str, Any], trainer: Trainer) -> Iterator[tuple[str, str]]:
    ranks = trainer.accelerators
    for name in DIVISORS:
        size: Any = given.get(name)
        if name == FSDP_SIZE and (size == -1 or (is_number(size) and size > ranks)):
            continue  # all ranks
        if is_number(size) and (size < 1 or ranks % size):
            yield name, f"{size} does not divide the {ranks} ranks of the trainer, one for each accelerator"


def _sampler(given: dict[str, Any], algorithm: str, rollout: Rollout) -> Iterator[tuple[str, str]]:
    sampler = rollout.sampler
    window = rollout.sampler.window
    name = f"{ROLLOUT}.algo.init_same_noise"
    if sampler.noise_level == 0:
        if given.get(name) is True:
            yield (
                name,
                "without noise in the steps (spec.rollout.sampler.noiseLevel is 0), all samples of a prompt would be "
                "the same; write false",
            )
        return
    name = f"{ROLLOUT}.algo.sde_contiguous"
    if window and window.placement_with(algorithm) == "Progressive" and given.get(name) is False:
        yield name, "a progressive window is contiguous: write true, or spec.rollout.sampler.window.placement Random"


def _pools(given: dict[str, Any], rollout: Rollout) -> Iterator[tuple[str, str]]:
    backend = given.get(BACKEND)
    if not rollout.separate:
        if backend not in (None, "naive"):
            yield BACKEND, f"{backend} is for spec.rollout.placement Separate; remove it"
        if given.get(HYBRID) is False:
            yield HYBRID, "false is for spec.rollout.placement Separate; remove it"
        return
    if backend == "naive":
        yield BACKEND, "naive is for engines on the trainer's accelerators; remove it"
    for name in (f"{ROLLOUT}.free_cache_engine", SLEEP):
        if given.get(name) is True:
            yield name, "an engine in rollout pods (spec.rollout.placement Separate) never sleeps; remove it"


def _ahead(given: dict[str, Any], rollout: Rollout) -> Iterator[tuple[str, str]]:
    ahead = rollout.batches_ahead
    if ahead and given.get(SOURCE) == "offline":
        yield SOURCE, "nothing is generated, so nothing ahead: remove spec.rollout.batchesAhead"
    name = f"{V1}.sampler.max_off_policy_threshold"
    strategy = f"{V1}.sampler.max_off_policy_strategy"
    most: Any = given.get(name)
    if is_number(most) and 0 < most <= ahead and given.get(strategy) != "drop":
        yield (
            name,
            f"samples generated {ahead} batches ahead (spec.rollout.batchesAhead) span {ahead + 1} versions, more than "
            f"{most}; raise it, or write {strategy}=drop",
        )

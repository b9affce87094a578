"""Fixtures of tests on the real engine. Each file runs in its own process, so that Ray can be forked."""

import ctypes
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.ml.engine.leftovers import Leftovers
from tests.ml.engine.replica_driver import DEADLINE, PROMPTS, SCORER, Replica, TwoReplicas, announced, replicas_of
from tests.ml.engine.shared_ray import SharedRay, end_actors
from tests.ml.engine.small_run import small_run
from verl_omni.weight_sync import ipc

PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


@pytest.hookimpl(trylast=True)  # after marks have deselected tests
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Refuse a second file: its engines would never start (docs/adr/0007).

    Processes that are forked from this one have its filters of warnings, and the engine's imports cause warnings.
    """
    engine_items = [item for item in items if item.get_closest_marker("engine")]
    for item in engine_items:
        item.add_marker(pytest.mark.filterwarnings("default"))
    files = sorted({item.path.name for item in engine_items})
    if len(files) > 1:
        raise pytest.UsageError(f"each file on the engine needs its own pytest (`make test`): {', '.join(files)}")


@pytest.fixture(scope="session", autouse=True)
def _orphans_stay_in_the_family() -> None:
    """A process whose parent is killed becomes a child of this process, so that `Leftovers` counts it."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@pytest.fixture(scope="module")
def shared_ray() -> Iterator[SharedRay]:
    """One Ray for the stacks and runs of the module; it starts with the first."""
    ray = SharedRay()
    yield ray
    ray.stop()


class Stacks:
    """Starts stacks on a Ray, each with its own folder."""

    def __init__(self, ray: SharedRay, folders: pytest.TempPathFactory) -> None:
        self._ray = ray
        self._folders = folders
        self._running: list[Any] = []

    def start(self, prompts: list[str], *overrides: str) -> tuple[Any, Any]:
        """Start workers and engines for settings; returns (settings, stack)."""
        from verl_omni.trainer.settings import configuration

        folder: Path = self._folders.mktemp("engine")
        (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts))
        config = configuration.load(
            [
                f"data.train_files='{folder / 'prompts.jsonl'}'",
                f"trainer.default_local_dir='{folder / 'run'}'",
                "trainer.total_training_steps=2",
                *overrides,
            ]
        )
        self._running.append(self._ray.start(config))
        return config, self._running[-1]

    def stop(self) -> None:
        """End the engines of all."""
        while self._running:
            self._running.pop().stop()


@pytest.fixture(scope="module")
def start(shared_ray: SharedRay, tmp_path_factory: pytest.TempPathFactory) -> Any:
    """`Stacks.start`, of stacks that end with the module."""
    stacks = Stacks(shared_ray, tmp_path_factory)
    yield stacks.start
    stacks.stop()


@pytest.fixture(scope="module")
def start_tiny(start: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., tuple[Any, Any]]:
    """`start` with the settings of `small_run`, a tiny Stable Diffusion 3, and engines that sleep."""

    def starting(prompts: list[str], *overrides: str) -> tuple[Any, Any]:
        from verl_omni.pipelines.sd3.tiny_model import make_tiny_sd3

        model = tmp_path_factory.mktemp("tiny") / "model"
        make_tiny_sd3(model)
        sleeping = "actor_rollout_ref.rollout.free_cache_engine=true"  # as on accelerators
        config_and_stack: tuple[Any, Any] = start(prompts, *small_run(model), sleeping, *overrides)
        return config_and_stack

    return starting


@pytest.fixture(scope="module")
def rows() -> Callable[[list[str]], list[dict[str, Any]]]:
    """Rows of a dataset for prompts, for the brightness reward."""

    def made(prompts: list[str]) -> list[dict[str, Any]]:
        return [
            {
                "raw_prompt": [{"role": "user", "content": prompt}],
                "data_source": "brightness",
                "reward_model": {"ground_truth": prompt},
                "extra_info": {"prompt": prompt},
            }
            for prompt in prompts
        ]

    return made


FAMILY_PROMPTS = ["a red circle", "two blue squares on the left"]  # of different lengths
NEGATIVE = "dark sky"


@dataclass(frozen=True)
class RunningFamily:
    """A stack with a tiny model of a family, LoRA, and two prompts with guidance."""

    config: Any
    stack: Any
    rows: list[dict[str, Any]]

    def evaluate(self) -> Any:
        """One sample of each prompt, with the same noise every time."""
        from verl_omni.trainer.generation import sample_generation

        return sample_generation.generate_scored(
            self.config, self.stack.agent_loop, sample_generation.evaluation_requests(self.rows, seed=7)
        )

    def samples(self, version: int) -> Any:
        """Two recorded samples of each prompt, generated with the weights of `version`."""
        from verl_omni.trainer.generation import sample_generation

        prompts = sample_generation.training_requests(self.rows, n=2, step=version + 1, version=version, seed=3)
        return sample_generation.generate_scored(self.config, self.stack.agent_loop, prompts)

    def update(self, samples: Any) -> dict[str, float]:
        """One trainer step on samples; it fails if its log-probabilities differ from the engine's by more than 1e-4."""
        from verl_omni.trainer.metrics import step_metrics

        return step_metrics.over_ranks(self.request_update(samples).meta_info["metrics"])

    def request_update(self, samples: Any) -> Any:
        """The answer to the driver for such a step."""
        from verl import DataProto

        from verl_omni.pipelines.registry import training_adapter

        settings = self.config.actor_rollout_ref
        guidance = training_adapter(settings.model.architecture).guidance(settings.rollout.pipeline)
        sampler = {"noise_level": 0.7, "sde_type": "sde", "guidance_scale": guidance, "tolerance": 1e-4}
        sampler["velocity_tolerance"] = 1e-3
        batch = {**samples.tensors, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0])}
        return self.stack.workers.update_actor(DataProto.from_dict(tensors=batch, meta_info={"request": sampler}))

    def publish(self, version: int) -> dict[str, Any]:
        """Send the adapter; the answer of the engine's worker."""
        import ray

        answers: list[dict[str, Any]] = ray.get(self.stack.workers.update_weights(global_steps=version), timeout=300)
        return answers[0]

    def check_agreement(self, samples: Any, before: Any, modules: int) -> Any:
        """Engine and trainer agree before and after an update that changes the images of `evaluate`, which it returns.

        Args:
            samples: made with version 0.
            before: what `evaluate` returned before the update.
            modules: number of modules that the adapter binds.
        """
        metrics = self.update(samples)
        assert metrics["actor/grad_norm"] > 0 and metrics["rollout_corr/max_abs_diff"] < 1e-4
        assert metrics["perf/flops/actor"] > 0 and "perf/mfu/actor" not in metrics, "a CPU has no known peak"

        assert self.publish(1)["bound"] == modules
        changed = self.evaluate()
        assert changed.versions == [1, 1] and not torch.equal(before.images, changed.images)
        # A single sample of Wan with random weights differs by 0.0013 in rounding, and all by 0.0006 in the mean.
        assert self.update(self.samples(version=1))["rollout_corr/max_velocity_rel_diff"] < 2e-3
        return changed

    def send_base(self, scale: float, *, only: str = "", component: str = "transformer") -> int:
        """Send the base weights of a transformer, by the names in its file, those that begin with `only` times `scale`.

        Returns:
            The number of tensors.
        """
        import ray
        from safetensors.torch import load_file

        file = Path(self.config.actor_rollout_ref.model.path) / component / "diffusion_pytorch_model.safetensors"
        weights = {
            f"{component}.{name}": tensor * (scale if name.startswith(only) else 1)
            for name, tensor in load_file(file).items()
        }
        job = ray.get_runtime_context().get_job_id()
        update = f"base-{scale}-{only}-{component}"
        handle, told = announced(update, 60.0, job=job)
        receiving = self.stack.servers.server_handles[0].collective_rpc.remote("update_weights_from_ipc", kwargs=told)
        ipc.send(iter(weights.items()), handle=handle, bucket_bytes=1 << 16, device=None, deadline=60.0)
        (answer,) = ray.get(receiving, timeout=120)
        assert not answer["lora"] and answer["tensors"] == len(weights)
        return len(weights)

    def check_base(self, changed: Any, tensors: int) -> None:
        """Other base weights change the images that `evaluate` last returned, and the right ones restore them.

        Args:
            tensors: number of the transformer's tensors.
        """
        assert self.send_base(1.5) == tensors
        assert (self.evaluate().images.int() - changed.images.int()).abs().max() > 1
        self.send_base(1.0)
        # The batch size affects rounding.
        assert (self.evaluate().images.int() - changed.images.int()).abs().max() <= 1


@pytest.fixture
def family(
    shared_ray: SharedRay, rows: Any, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., RunningFamily]]:
    """Start a family by the name of its folder; its actors end with the test."""
    from verl_omni.models.tiny import MAKERS
    from verl_omni.pipelines.registry import FAMILIES

    shared_ray.begin(sorted(FAMILIES))
    stacks = Stacks(shared_ray, tmp_path_factory)

    def starting(name: str, *overrides: str) -> RunningFamily:
        MAKERS[name](tmp_path / name)
        config, stack = stacks.start(
            FAMILY_PROMPTS,
            *small_run(tmp_path / name),
            "actor_rollout_ref.actor.optim.lr=1e-2",
            "actor_rollout_ref.rollout.pipeline.guidance_scale=3.0",
            "actor_rollout_ref.rollout.pipeline.max_sequence_length=32",
            *overrides,
        )
        guided = [{**row, "raw_negative_prompt": NEGATIVE} for row in rows(FAMILY_PROMPTS)]
        return RunningFamily(config, stack, guided)

    yield starting
    stacks.stop()
    end_actors()


@pytest.fixture(scope="module")
def two_replicas(start_tiny: Any, rows: Any, tmp_path_factory: pytest.TempPathFactory) -> TwoReplicas:
    """Two replicas with LoRA and a batch size of one, and two reward workers."""
    scorer = tmp_path_factory.mktemp("faults") / "scorer.py"
    scorer.write_text(SCORER)
    config, stack = start_tiny(
        PROMPTS,
        "trainer.n_gpus_per_node=2",
        # With a batch size of one, images are bit-identical, and many requests take a while.
        "actor_rollout_ref.rollout.max_num_seqs=1",
        "actor_rollout_ref.rollout.max_concurrent_requests=256",
        f"actor_rollout_ref.rollout.checkpoint_engine.engine_kwargs.naive.deadline_seconds={DEADLINE}",
        f"actor_rollout_ref.rollout.deadline_seconds={DEADLINE}",
        "reward.scorer=null",
        f"reward.custom_reward_function.path='{scorer}'",
        "reward.num_workers=2",
    )
    replicas = replicas_of(stack)
    assert len(replicas) == 2
    return TwoReplicas(config, stack, replicas, rows)


@pytest.fixture
def replica(two_replicas: TwoReplicas) -> Iterator[Replica]:
    """The first replica. After each test it must serve the same weights and leave no resources."""
    first = two_replicas.replicas[0]
    before = first.picture()
    counted = Leftovers()
    yield first
    assert torch.equal(first.picture(), before), "the old weights must still be served"
    counted.none()

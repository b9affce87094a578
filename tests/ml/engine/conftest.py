"""What tests on the real engine share. Each file is a process of its own (`make test`), so that Ray can be forked."""

from __future__ import annotations

import contextlib
import ctypes
import gc
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import torch
import tqdm
from torch import Tensor

from verl_omni.weight_sync import names, transfer


@pytest.fixture(scope="session", autouse=True)
def _no_thread_of_progress_bars() -> None:
    """A process with a second thread cannot fork Ray's workers; saving a model shows a bar, which starts one."""
    tqdm.tqdm.monitor_interval = 0


@pytest.fixture(scope="session", autouse=True)
def _orphans_stay_in_the_family() -> None:
    """A process whose parent is killed becomes this one's child, so that `Leftovers` counts it."""
    assert ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) == 0


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Start Ray, workers and engines for settings; returns (settings, stack). They end with the module."""
    from verl_omni.trainer import settings, startup

    stacks: list[Any] = []

    def starting(prompts: list[str], *overrides: str) -> tuple[Any, Any]:
        folder: Path = tmp_path_factory.mktemp("engine")
        (folder / "prompts.jsonl").write_text("".join(f'{{"prompt": "{prompt}"}}\n' for prompt in prompts))
        made = settings.load(
            [
                f"data.train_files='{folder / 'prompts.jsonl'}'", f"trainer.default_local_dir='{folder / 'run'}'",
                "trainer.total_training_steps=2", "reward.scorer=brightness", *overrides,
            ]
        )  # fmt: skip
        startup.prepare_environment(startup.accelerator_present())
        startup.fit_to_machine(made, startup.accelerator_present())
        stacks.append(startup.start(made, lambda text: None))
        return made, stacks[-1]

    yield starting
    for stack in stacks:
        stack.stop()


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


PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h
FAMILY_PROMPTS = ["a red circle", "two blue squares on the left"]  # of different lengths
NEGATIVE = "dark sky"


@dataclass(frozen=True)
class RunningFamily:
    """A stack with a tiny model of a family, LoRA, and two prompts with guidance."""

    config: Any
    stack: Any
    rows: list[dict[str, Any]]

    def evaluate(self) -> Any:
        """A sample of each prompt, the same noise every time."""
        from verl_omni.trainer import rollout

        return rollout.scored(self.config, self.stack.agent_loop, rollout.evaluation_prompts(self.rows, seed=7))

    def samples(self, version: int) -> Any:
        """Two samples of each prompt, recorded, by the weights of `version`."""
        from verl_omni.trainer import rollout

        prompts = rollout.training_prompts(self.rows, n=2, step=version + 1, version=version, seed=3)
        return rollout.scored(self.config, self.stack.agent_loop, prompts)

    def update(self, samples: Any) -> dict[str, float]:
        """One step of the trainer on samples; it refuses them where it and the engine disagree by more than 1e-4."""
        from verl import DataProto

        from verl_omni.pipelines.registry import training_adapter
        from verl_omni.trainer import metrics

        settings = self.config.actor_rollout_ref
        guidance = training_adapter(settings.model.architecture).guidance(settings.rollout.pipeline)
        sampler = {"noise_level": 0.7, "sde_type": "sde", "guidance_scale": guidance, "tolerance": 1e-4}
        batch = {**samples.tensors, "advantages": torch.tensor([1.0, -1.0, 1.0, -1.0])}
        proto = DataProto.from_dict(tensors=batch, meta_info={"request": sampler})
        return metrics.mean_of(self.stack.workers.update_actor(proto).meta_info["metrics"])

    def publish(self, version: int) -> dict[str, Any]:
        """Send the adapter; what the engine's worker answers."""
        import ray

        answers: list[dict[str, Any]] = ray.get(self.stack.workers.update_weights(global_steps=version), timeout=300)
        return answers[0]

    def send_base(self, scale: float) -> int:
        """Send the model's own weights times `scale`, under the names of its file; how many tensors that were."""
        import ray
        from safetensors.torch import load_file

        file = Path(self.config.actor_rollout_ref.model.path) / "transformer" / "diffusion_pytorch_model.safetensors"
        weights = {f"transformer.{name}": tensor * scale for name, tensor in load_file(file).items()}
        job, update = ray.get_runtime_context().get_job_id(), f"base-{scale}"
        handle = names.make_update_zmq_handle(f"ipc:///tmp/rl-colocate-zmq-{job}-replica-0-rank-0.sock", update)
        receiving = self.stack.servers.server_handles[0].collective_rpc.remote(
            "update_weights_from_ipc", kwargs={"use_shm": True, "zmq_update_id": update, "deadline": 60.0}
        )
        transfer.send(iter(weights.items()), handle=handle, bucket_bytes=1 << 16, device=None, deadline=60.0)
        (answer,) = ray.get(receiving, timeout=120)
        assert not answer["lora"] and answer["tensors"] == len(weights)
        return len(weights)


@pytest.fixture(scope="module")
def family(start: Any, rows: Any, tmp_path_factory: pytest.TempPathFactory) -> Callable[..., RunningFamily]:
    """Start a family by the name of its folder."""

    def starting(name: str, *overrides: str) -> RunningFamily:
        from verl_omni.models.tiny import MAKERS

        model = tmp_path_factory.mktemp("family") / name
        MAKERS[name](model)
        config, stack = start(
            FAMILY_PROMPTS,
            "data.train_batch_size=2", "actor_rollout_ref.rollout.n=2",
            f"actor_rollout_ref.model.path='{model}'", "actor_rollout_ref.model.lora_rank=4",
            "actor_rollout_ref.actor.ppo_mini_batch_size=2", "actor_rollout_ref.actor.optim.lr=1e-2",
            "actor_rollout_ref.rollout.pipeline.height=64", "actor_rollout_ref.rollout.pipeline.width=64",
            "actor_rollout_ref.rollout.pipeline.num_inference_steps=4",
            "actor_rollout_ref.rollout.pipeline.guidance_scale=3.0",
            "actor_rollout_ref.rollout.pipeline.max_sequence_length=32",
            *overrides,
        )  # fmt: skip
        guided = [{**row, "raw_negative_prompt": NEGATIVE} for row in rows(FAMILY_PROMPTS)]
        return RunningFamily(config, stack, guided)

    return starting


# --- a trainer's end of an update, played by a test ---------------------------------------------------------

LAYER = "transformer.transformer_blocks.{block}.attn.to_{part}"
RANK, WIDTH = 4, 32
DEADLINE = 10.0  # seconds that either end of a transfer waits for the other
SOON = 60.0  # seconds by which whatever is asked is there
TOKEN = secrets.token_hex(4)


def lora_settings(rank: int = RANK, alpha: int = RANK, parts: str = "qk") -> dict[str, Any]:
    """What peft says of an adapter of these parts of the attention."""
    targets = [f"to_{part}" for part in parts]
    return {"r": rank, "lora_alpha": alpha, "target_modules": targets, "peft_type": "LORA", "bias": "none"}


@dataclass
class Replica:
    """A server of the stack, and the trainer's end of an update as these tests play it."""

    server: Any
    rank: int
    job: str
    updates: int = 0
    asked: int = 0
    token: str = TOKEN

    @staticmethod
    def adapter(strength: float, rank: int = RANK, parts: str = "qk") -> dict[str, Tensor]:
        """An adapter of all queries and keys, or other parts; another strength draws other pictures."""
        generator = torch.Generator().manual_seed(3)
        made: dict[str, Tensor] = {}
        for block in range(2):
            for part in parts:
                module = LAYER.format(block=block, part=part)
                made[f"{module}.lora_A.weight"] = torch.randn(rank, WIDTH, generator=generator)
                made[f"{module}.lora_B.weight"] = strength * torch.randn(WIDTH, rank, generator=generator)
        return made

    def begin(self, version: int | None = None, settings: dict[str, Any] | None = None) -> tuple[str, Any]:
        """Tell the worker that an adapter comes. Returns the handle to send it on, and the answer to wait for."""
        self.updates += 1
        # No other run on this host, whose Ray counts its jobs from one too, has this name.
        update = f"{names.make_update_zmq_id(0, self.updates)}-{TOKEN}"
        base = f"ipc:///tmp/rl-colocate-zmq-{self.job}-replica-{self.rank}-rank-0.sock"
        answer = self.server.collective_rpc.remote(
            "update_weights_from_ipc",
            kwargs={
                "peft_config": settings or lora_settings(), "base_sync_done": True, "use_shm": True,
                "zmq_update_id": update, "deadline": DEADLINE, "global_steps": version,
            },
        )  # fmt: skip
        return names.make_update_zmq_handle(base, update), answer

    def publish(
        self, weights: dict[str, Tensor], version: int, bucket_bytes: int = 1 << 20,
        settings: dict[str, Any] | None = None,
    ) -> Any:  # fmt: skip
        """A good update; the worker's answer."""
        import ray

        handle, answer = self.begin(version, settings)
        transfer.send(weights.items(), handle=handle, bucket_bytes=bucket_bytes, device=None, deadline=DEADLINE)
        found = ray.get(answer, timeout=SOON)[0]
        ray.get(self.server.set_global_steps.remote(version), timeout=SOON)
        return found

    def draw(self, seed: int) -> Any:
        """A sample that is on its way."""
        self.asked += 1
        return self.server.generate.remote(request_id=f"draw-{self.asked}", **self.request(seed))

    @staticmethod
    def request(seed: int) -> dict[str, Any]:
        """What is asked for a sample, besides its name."""
        params = {
            "height": 64, "width": 64, "num_inference_steps": 4, "guidance_scale": 1.0, "max_sequence_length": 16,
            "seed": seed, "logprobs": False,
        }  # fmt: skip
        return {"prompt_ids": [2, 5, 7], "sampling_params": params}

    def picture(self, seed: int = 5) -> Tensor:
        import ray

        return ray.get(self.draw(seed), timeout=SOON).diffusion_output  # type: ignore[no-any-return]

    def pid(self) -> int:
        """The process of the server; on a host, the engine's worker is a thread of it."""
        import ray

        return ray.get(self.server.__ray_call__.remote(lambda own: os.getpid()), timeout=SOON)  # type: ignore[no-any-return]

    def in_flight(self) -> int:
        import ray

        return ray.get(self.server.__ray_call__.remote(lambda own: len(own.engine.request_states)), timeout=SOON)  # type: ignore[no-any-return]


class Leftovers:
    """What a fault may leave: processes, sockets of updates, and shared memory. Counted from here on.

    Files in shared memory that processes of others have open are theirs; several runs may share a machine.
    """

    def __init__(self) -> None:
        self.before = self._now()

    def none(self) -> None:
        """Assert that nothing is there that was not; what ends may take its time."""
        end = time.monotonic() + SOON
        gc.collect()  # errors that a test has looked at keep what their functions held
        while found := {key: what for key, what in self._now().items() if key not in self.before}:
            assert time.monotonic() < end, found
            time.sleep(0.05)

    @staticmethod
    def _now() -> dict[str, str]:
        found = {str(path): "socket" for path in Path("/tmp").glob(f"rl-*-{TOKEN}.sock")}
        own = {os.getpid()}
        for process in psutil.Process().children(recursive=True):
            with contextlib.suppress(psutil.NoSuchProcess):
                own.add(process.pid)
                command = " ".join(process.cmdline())
                # Ray starts its workers when it likes. A process that shares memory for the first time starts a
                # tracker, which lives as long as it does.
                of_others = command.startswith("ray::") or "resource_tracker" in command
                if process.status() != psutil.STATUS_ZOMBIE and not of_others:
                    found[f"process {process.pid}"] = command
        mapped = {pid: _shared_memory_of(pid) for pid in psutil.pids()}
        elsewhere = set().union(*(files for pid, files in mapped.items() if pid not in own))
        present = {str(path) for path in Path("/dev/shm").iterdir()} - elsewhere
        removed = {file for pid in own for file in mapped.get(pid, ()) if transfer.SEGMENT_PREFIX in file}
        return found | dict.fromkeys(present | removed, "shared memory")


def _shared_memory_of(pid: int) -> set[str]:
    """The files in /dev/shm that a process has mapped, removed ones too."""
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended
        return set()
    return {line[line.index("/dev/shm/") :] for line in lines if "/dev/shm/" in line}


@pytest.fixture(scope="module")
def leftovers() -> type[Leftovers]:
    """To count what is left: make one before, ask `none` after."""
    return Leftovers


@pytest.fixture(scope="module", name="lora_settings")
def _lora_settings() -> Callable[..., dict[str, Any]]:
    """For tests: `lora_settings` above."""
    return lora_settings


@pytest.fixture(scope="module")
def replicas_of() -> Callable[[Any], list[Replica]]:
    """The servers of a stack with a tiny Stable Diffusion 3 and LoRA of rank 4, each with an adapter of version 1."""

    def made(stack: Any) -> list[Replica]:
        import ray

        job = ray.get_runtime_context().get_job_id()
        found = [Replica(server, rank, job) for rank, server in enumerate(stack.servers.server_handles)]
        for replica in found:
            replica.publish(replica.adapter(1.0), version=1)
        return found

    return made

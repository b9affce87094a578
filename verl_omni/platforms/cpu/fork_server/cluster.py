"""Local Ray cluster whose workers are forks of the driver."""

import contextlib
import functools
import gc
import importlib.metadata
import json
import logging
import os
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from typing import Any

from verl_omni.platforms.cpu import process_tuning
from verl_omni.platforms.cpu.fork_server import client, server

logger = logging.getLogger(__name__)
# Forked workers depend on internals of Ray. Add a release once tests/ml/platforms/test_fork_server.py and the
# whole-job tests pass with it.
RAY_TESTED = frozenset({"2.60.0"})
END_SECONDS = 20
HEAD_STARTS = 3
# Modules that do not import Ray: the head starts meanwhile.
BEFORE_RAY = (
    "torch",
    "transformers",
    "diffusers",
    "peft",
    "datasets",
    "vllm.engine.arg_utils",
    "vllm.lora.lora_model",
    "vllm.entrypoints.launchers.cli_args",
    "vllm.v1.structured_output",
)
WORKERS_NEED = (
    "verl.experimental.agent_loop.agent_loop",
    "verl.experimental.reward_loop.reward_loop",
    "verl_omni.agent_loop",
    "verl_omni.reward_loop.reward_manager",
    "verl_omni.reward_loop.rewards",
    "verl_omni.workers.engine_workers",
    "verl_omni.workers.rollout.vllm_rollout.training_worker.replica_worker",
    "verl_omni.workers.rollout.vllm_rollout.vllm_omni_async_server",
    # What the engine's pipelines of all families import.
    "vllm_omni.diffusion.attention.layer",
    "vllm_omni.diffusion.cache.cachedit",
    "vllm_omni.diffusion.distributed.autoencoders.autoencoder_kl",
    "vllm_omni.diffusion.distributed.cfg_parallel",
    "vllm_omni.diffusion.model_loader.diffusers_loader",
)
# The stack imports these if it can: kernels of accelerators, torch's compiler, weights in GGUF, resampling of audio,
# and language models whose experts verl patches. Nothing on a CPU needs them, and they are a tenth of all modules.
NOT_NEEDED = (
    "cuda",
    "flashinfer",
    "gguf",
    "humming",
    "scipy.signal",
    "torch._inductor.lowering",
    "z3",
    *(
        f"vllm.model_executor.models.{name}"
        for name in (
            "deepseek_v2",
            "kimi_vl",
            "mixtral",
            "qwen2_moe",
            "qwen3_5",
            "qwen3_moe",
            "qwen3_next",
            "qwen3_vl_moe",
        )
    ),
)
WARNS_OF_FLASHINFER = "vllm_omni.diffusion.attention.backends.ring.ring_globals"
# The head is the cluster's first job, this process its second.
JOB_ID = "02000000"


def can_fork_workers() -> bool:
    """Whether this process can fork Ray workers: Ray is a tested release and not imported yet, and no thread runs."""
    is_tested = importlib.metadata.version("ray") in RAY_TESTED
    return is_tested and "ray" not in sys.modules and threading.active_count() == 1


class ForkingCluster:
    """Start a local Ray while importing the training stack, then connect to it as its driver.

    Args:
        needed: modules to import for the workers, in addition to the training stack.
        head_options: arguments of `ray.init` for the cluster.

    Raises:
        RuntimeError: Ray is imported already, another thread runs, or Ray did not start.
    """

    def __init__(self, needed: Sequence[str] = (), /, **head_options: Any) -> None:
        if not can_fork_workers():
            raise RuntimeError(
                f"trainer.fork_workers=true needs Ray {' or '.join(sorted(RAY_TESTED))}, and a process with one thread "
                "that has not imported Ray; write trainer.fork_workers=false"
            )
        self._name = server_name()
        self._head = self._start_head(head_options)
        self._server: int | None = None
        self._alive: int | None = None
        try:
            self._start(needed, head_options)
        except BaseException:
            self.stop()
            raise

    def _start(self, needed: Sequence[str], head_options: dict[str, Any]) -> None:
        with _frozen_imports():
            logging.getLogger(WARNS_OF_FLASHINFER).setLevel(logging.ERROR)
            with _hidden(NOT_NEEDED):
                for name in BEFORE_RAY:
                    importlib.import_module(name)
            head = self._read_head(head_options)
            # Ray reads both once, when it is imported; so modules that import Ray come after this.
            os.environ["RAY_JOB_ID"] = JOB_ID
            os.environ["RAY_RAYLET_PID"] = str(head["raylet_pid"])
            with _ray_rng_untouched():
                with _hidden(NOT_NEEDED):
                    for name in WORKERS_NEED:
                        importlib.import_module(name)
                for name in needed:  # may be the user's
                    importlib.import_module(name)
        self._server, self._alive = start_server(self._name)
        import ray

        ray.init(address=head["address"], log_to_driver=True)
        if (job := ray.get_runtime_context().get_job_id()) != JOB_ID:
            raise RuntimeError(f"Ray gave the driver job id {job}; its workers were forked for {JOB_ID}")

    def _start_head(self, options: dict[str, Any]) -> subprocess.Popen[str]:
        """Start Ray in a process that exits when its standard input is closed."""
        head = subprocess.Popen(
            [sys.executable, "-m", "verl_omni.platforms.cpu.fork_server.head"],
            env={**os.environ, client.SERVER: self._name},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert head.stdin is not None  # a pipe
        head.stdin.write(json.dumps(options) + "\n")
        head.stdin.flush()
        return head

    def _read_head(self, head_options: dict[str, Any]) -> dict[str, Any]:
        """Return what the head printed; start another when Ray's own start-up timeout of 30 s was too short."""
        for left in reversed(range(HEAD_STARTS)):
            assert self._head.stdout is not None  # a pipe
            if line := self._head.stdout.readline():
                return json.loads(line)  # type: ignore[no-any-return]
            code = self._head.wait()
            _close(self._head)
            if left:
                logger.warning("Ray did not start (exit code %d); retrying", code)
                self._head = self._start_head(head_options)
        raise RuntimeError(f"Ray did not start in {HEAD_STARTS} attempts; its messages are above in this log")

    def stop(self) -> None:
        """Disconnect from Ray, and stop it and the fork server. Calling it again does nothing."""
        if (ray := sys.modules.get("ray")) is not None:
            ray.shutdown()
        if self._alive is not None:
            os.close(self._alive)
            self._alive = None
        if self._server is not None:
            os.waitpid(self._server, 0)  # it waits for its forks, which exit with this driver's job
            self._server = None
        _close(self._head)
        try:
            self._head.wait(END_SECONDS)
        except subprocess.TimeoutExpired:
            self._head.kill()
            self._head.wait()


def server_name() -> str:
    """A name for a fork server of this process."""
    return f"omni-operator-{os.getpid()}-{secrets.token_hex(8)}"


def start_server(name: str) -> tuple[int, int]:
    """Fork the fork server from this process.

    Returns:
        Its process id, and a file descriptor that ends it when it is closed.
    """
    listener = socket.socket(socket.AF_UNIX)
    listener.bind(f"\0{name}")  # abstract, so it has no file
    listener.listen(64)
    reading, writing = os.pipe()
    sys.stdout.flush()
    sys.stderr.flush()
    pid = os.fork()
    if pid == 0:
        os.close(writing)
        server.run(listener, reading)
    os.close(reading)
    listener.close()
    return pid, writing


@contextlib.contextmanager
def _frozen_imports() -> Iterator[None]:
    """Collect garbage once after the imports, where it takes a fifth of their time, and never look at them again.

    Which package each module is of, which transformers and diffusers both ask, is read once.
    """
    gc.disable()
    packages = importlib.metadata.packages_distributions
    importlib.metadata.packages_distributions = functools.cache(packages)
    try:
        yield
    finally:
        importlib.metadata.packages_distributions = packages
        gc.enable()
    gc.collect()
    process_tuning.return_freed_memory()
    gc.freeze()


@contextlib.contextmanager
def _hidden(names: Sequence[str]) -> Iterator[None]:
    """Let the import of each of these modules fail, as if it were not installed, unless it is imported already."""
    hidden = dict.fromkeys(name for name in names if name not in sys.modules)
    sys.modules.update(hidden)  # type: ignore[arg-type]  # None: an import raises ModuleNotFoundError
    try:
        yield
    finally:
        for name in hidden:
            if sys.modules.get(name) is None:
                sys.modules.pop(name, None)


@contextlib.contextmanager
def _ray_rng_untouched() -> Iterator[None]:
    """Keep Ray's RNG unseeded: it is seeded at the first id that it draws, and `@ray.remote` on a class draws one.

    Forks of a process with a seeded RNG all draw the same ids. Two workers that start at the same moment then create an
    object with the same id, and one of them crashes (WarmupStore in plasma_store_provider.cc).
    """
    import ray.actor

    class RandomActorClassID(ray.ActorClassID):  # type: ignore[misc]
        @classmethod
        def from_random(cls) -> Any:
            return ray.ActorClassID(os.urandom(cls.size()))

    ray.actor.ActorClassID = RandomActorClassID
    try:
        yield
    finally:
        ray.actor.ActorClassID = ray.ActorClassID


def _close(head: subprocess.Popen[str]) -> None:
    for pipe in (head.stdin, head.stdout):
        with contextlib.suppress(BrokenPipeError):
            pipe.close()  # type: ignore[union-attr]

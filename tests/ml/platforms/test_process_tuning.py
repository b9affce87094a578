"""Threads, allocator and decoder of processes that compute on a CPU, and how often an idle engine polls."""

import asyncio
import os
import resource
import subprocess
import sys
import threading
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from verl_omni.compat import whole_batches
from verl_omni.platforms.cpu import process_tuning
from verl_omni.trainer import startup


@given(cpus=st.integers(1, 256), ranks=st.integers(1, 64))
def test_phases_that_take_turns_share_the_cores_and_overlapping_ones_do_not(cpus: int, ranks: int) -> None:
    threads = process_tuning.phase_threads(cpus, ranks, overlapping=False)
    assert threads >= 1
    assert threads == 1 or threads * ranks <= cpus < (threads + 1) * ranks
    assert process_tuning.phase_threads(cpus, ranks, overlapping=True) == 1


@pytest.mark.parametrize(("given_threads", "phase"), [(None, True), ("1", False), ("8", False)])
def test_engine_and_trainer_get_threads_unless_the_user_chose_a_number(
    given_threads: str | None, phase: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", process_tuning.THREADS):
        monkeypatch.setenv(name, "")  # restored afterwards, whatever is set meanwhile
        monkeypatch.delenv(name)
    if given_threads is not None:
        monkeypatch.setenv("OMP_NUM_THREADS", given_threads)
    startup.prepare_environment(has_accelerator=False)
    assert (process_tuning.THREADS in os.environ) == phase
    assert os.environ["OMP_NUM_THREADS"] == (given_threads or "1")
    assert os.environ["OMP_WAIT_POLICY"] == "PASSIVE"
    assert os.environ["GOMP_SPINCOUNT"] == "1000"


def test_the_threads_of_a_phase_are_those_of_one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    before = torch.get_num_threads()
    thread_counts: list[int] = []

    def compute(shared: bool) -> None:
        process_tuning.use_phase_threads(shared=shared)
        thread_counts.append(torch.get_num_threads())

    def in_a_thread(shared: bool = False) -> None:
        thread = threading.Thread(target=compute, args=(shared,))
        thread.start()
        thread.join()

    monkeypatch.delenv(process_tuning.THREADS, raising=False)
    in_a_thread()
    monkeypatch.setenv(process_tuning.THREADS, "6")
    in_a_thread()
    in_a_thread(shared=True)
    monkeypatch.setenv(process_tuning.THREADS, "1")
    in_a_thread(shared=True)
    monkeypatch.delenv(process_tuning.THREADS)
    in_a_thread()
    assert thread_counts[1:] == [6, 3, 1, thread_counts[0]]
    assert torch.get_num_threads() == before


@pytest.mark.parametrize(("arguments", "shared"), [({whole_batches.PART: (0, 2)}, True), ({}, False), (None, False)])
def test_the_engine_shares_the_cores_while_it_generates_a_part_of_a_step(
    monkeypatch: pytest.MonkeyPatch, arguments: Any, shared: bool
) -> None:
    from verl_omni.platforms.cpu import diffusion_worker

    shared_or_not: list[bool] = []
    monkeypatch.setattr(diffusion_worker, "use_phase_threads", lambda *, shared: shared_or_not.append(shared))
    execute = diffusion_worker._with_phase_threads(lambda worker, work: work)
    request = SimpleNamespace(req=SimpleNamespace(sampling_params=SimpleNamespace(extra_args=arguments)))
    work = SimpleNamespace(scheduled_new_reqs=[request])
    assert execute(None, work) is work and shared_or_not == [shared]


PROGRAM = """
import resource, sys
from verl_omni.platforms.cpu import process_tuning
if sys.argv[1] == "keep":
    process_tuning.keep_freed_memory()
def touch():
    size = 16 << 20
    parts = [bytearray(size) for _ in range(4)]
    for part in parts:
        part[::4096] = b"1" * (size // 4096)
touch()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(5):
    touch()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.slow
def test_memory_that_was_freed_is_used_again_without_page_faults() -> None:
    def faults(mode: str) -> int:
        command = [sys.executable, "-c", PROGRAM, mode]
        return int(subprocess.run(command, capture_output=True, text=True, check=True).stdout)

    pages = 5 * 4 * (16 << 20) // resource.getpagesize()
    assert faults("keep") < pages / 20
    assert faults("default") > pages / 4


@pytest.mark.parametrize(("side", "chunks"), [(32, [16, 4]), (128, [1] * 3)])
@torch.inference_mode()
def test_an_image_decoder_decodes_the_same_in_chunks(side: int, chunks: list[int]) -> None:
    from diffusers import AutoencoderKL

    from verl_omni.platforms.cpu.diffusion_worker import _decode_images_faster

    vae = AutoencoderKL(block_out_channels=[4], latent_channels=3, norm_num_groups=2, layers_per_block=1)
    latents = torch.randn(sum(chunks), 3, side, side)
    before = vae.decode(latents).sample
    decoded: list[int] = []
    vae.decoder.register_forward_pre_hook(lambda _, given: decoded.append(len(given[0])))
    _decode_images_faster(vae)
    assert vae.decoder.conv_in.weight.is_contiguous(memory_format=torch.channels_last)
    (pixels,) = vae.decode(latents, return_dict=False)
    torch.testing.assert_close(pixels, before, rtol=1e-4, atol=1e-4)
    assert decoded == chunks
    assert torch.equal(vae.decode(latents).sample, pixels)


@pytest.mark.slow
def test_an_idle_engine_polls_a_hundred_times_a_second(monkeypatch: pytest.MonkeyPatch) -> None:
    from vllm_omni.engine import orchestrator
    from vllm_omni.entrypoints import async_omni_base

    from verl_omni.compat import engine_polling

    monkeypatch.setattr(orchestrator, "asyncio", asyncio)
    monkeypatch.setattr(async_omni_base, "_FINAL_OUTPUT_IDLE_SLEEP_S", async_omni_base._FINAL_OUTPUT_IDLE_SLEEP_S)
    engine_polling.apply()
    waited: list[float] = []

    async def sleep(delay: float, result: Any = None) -> Any:
        waited.append(delay)
        orchestrator_loop._shutdown_event.set()

    monkeypatch.setattr(engine_polling, "asyncio", SimpleNamespace(sleep=sleep))
    orchestrator_loop = object.__new__(orchestrator.Orchestrator)
    orchestrator_loop._shutdown_event = asyncio.Event()
    orchestrator_loop.num_stages = 0
    orchestrator_loop._orch_monitor = SimpleNamespace(note_loop=lambda idle: None)
    asyncio.run(orchestrator_loop._orchestration_loop())
    assert waited == [engine_polling.SECONDS]
    assert async_omni_base._FINAL_OUTPUT_IDLE_SLEEP_S == engine_polling.SECONDS

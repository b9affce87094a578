"""The engine's worker of a diffusion model on a CPU."""

import functools
from collections.abc import Callable
from typing import Any

import torch
from diffusers.models.autoencoders.vae import DecoderOutput
from torch import Tensor
from typing_extensions import override
from vllm_omni.diffusion.worker.diffusion_worker import DiffusionWorker

from verl_omni.compat import whole_batches
from verl_omni.platforms.cpu.lora_sum import use_cheaper_order
from verl_omni.platforms.cpu.process_tuning import use_phase_threads

# Latents that are decoded at a time, height times width of all of them: 16 images of 64 px of the examples, whose
# intermediate tensors fit the processor's caches.
LATENT_PIXELS = 16 * 32 * 32


def _with_phase_threads(execute: Callable[..., Any]) -> Any:
    """`execute` with the threads of its phase, whichever thread calls it."""

    @functools.wraps(execute)
    def with_threads(worker: Any, work: Any, *given: Any, **named: Any) -> Any:
        new = [request.req.sampling_params.extra_args for request in getattr(work, "scheduled_new_reqs", ())]
        use_phase_threads(shared=any(whole_batches.part_of(arguments) is not None for arguments in new))
        return execute(worker, work, *given, **named)

    return with_threads


class CpuDiffusionWorker(DiffusionWorker):
    """vLLM-Omni's worker with a faster decoder, whose sleep and wake do nothing.

    Upstream's sleep and wake need vLLM's CUDA memory pool.
    """

    execute_model = _with_phase_threads(DiffusionWorker.execute_model)
    execute_model_batch = _with_phase_threads(DiffusionWorker.execute_model_batch)
    execute_stepwise = _with_phase_threads(DiffusionWorker.execute_stepwise)

    @override
    def load_model(self, load_format: str = "default", custom_pipeline_name: str | None = None, **kwargs: Any) -> None:
        use_cheaper_order()
        super().load_model(load_format, custom_pipeline_name, **kwargs)
        vae = getattr(self.model_runner.pipeline, "vae", None)
        if vae is not None and all(weight.dim() <= 4 for weight in vae.parameters()):
            _decode_images_faster(vae)

    @override
    def sleep(self, level: int = 1) -> int:
        """Number of freed bytes: 0."""
        return 0

    @override
    def wake_up(self, tags: list[str] | None = None) -> bool:
        return True


def _decode_images_faster(vae: Any) -> None:
    """Store the kernels of a VAE as oneDNN computes fastest, and decode few images at a time.

    The pixels differ by float32 rounding. A VAE of videos has kernels of five dimensions, and this is not for it.
    """
    vae.to(memory_format=torch.channels_last)
    decode = vae.decode

    def decode_in_chunks(latents: Tensor, return_dict: bool = True, **named: Any) -> Any:
        images = max(1, LATENT_PIXELS // latents[0, 0].numel())
        pixels = torch.cat([decode(few, return_dict=False, **named)[0] for few in latents.split(images)])
        return DecoderOutput(sample=pixels) if return_dict else (pixels,)

    vae.decode = decode_in_chunks

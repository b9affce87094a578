"""Stable Diffusion 3's text encoders and VAE, for images that the engine did not generate."""

from collections.abc import Sequence

import torch
from diffusers import StableDiffusion3Pipeline
from torch import Tensor


class SD3Encoder:
    """Encodes prompts and images to the tensors that the engine would record. It stays in CPU memory between calls.

    Args:
        folder: the model, in diffusers' layout.
        dtype: dtype of the encoders and of the embeddings.
        max_sequence_length: tokens of the T5 encoder.
    """

    def __init__(self, folder: str, dtype: torch.dtype, max_sequence_length: int) -> None:
        self._pipeline = StableDiffusion3Pipeline.from_pretrained(folder, transformer=None, dtype=dtype)
        self._dtype = dtype
        self._length = max_sequence_length

    @torch.no_grad()
    def encode(self, prompts: Sequence[str], pixels: Tensor, device: torch.device) -> dict[str, Tensor]:
        """Encode S images of each prompt on `device`.

        Args:
            prompts: [P].
            pixels: uint8 [P, S, 3, H, W].

        Returns:
            In CPU memory: `clean_latents`, float32 [P, S, C, h, w], the modes of the VAE's distributions as the
            transformer gets them; `prompt_embeds` [P, S, tokens, D] and `pooled_prompt_embeds` [P, S, D].
        """
        samples = pixels.shape[1]
        self._pipeline.to(device)
        embeds, _, pooled, _ = self._pipeline.encode_prompt(
            list(prompts),
            None,
            None,
            device=device,
            do_classifier_free_guidance=False,
            max_sequence_length=self._length,
        )
        vae = self._pipeline.vae
        images = pixels.flatten(0, 1).to(device, self._dtype) / 127.5 - 1
        modes = torch.cat([vae.encode(image[None]).latent_dist.mode() for image in images])
        latents = (modes.float() - vae.config.shift_factor) * vae.config.scaling_factor
        self._pipeline.to("cpu")
        encoded = {"clean_latents": latents.unflatten(0, (-1, samples))}
        for name, rows in (("prompt_embeds", embeds), ("pooled_prompt_embeds", pooled)):
            encoded[name] = rows.unsqueeze(1).expand(-1, samples, *rows.shape[1:])
        return {name: rows.cpu() for name, rows in encoded.items()}

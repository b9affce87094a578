#!/usr/bin/env bash
# diffusers 0.40.0: the LoRA loader of Flux reads entries `<module>.alpha` of a file, that of Stable Diffusion 3 refuses
# the file that has them.
#
# Behaviour: FluxPipeline.lora_state_dict takes `.alpha` as the adapter's alpha. The same file, with the names of
# Stable Diffusion 3's layers, ends StableDiffusion3Pipeline.load_lora_weights with
# "Invalid LoRA checkpoint"; without the entry it loads.
# So one file cannot serve diffusers and programs that learn the scale of an adapter from `.alpha` alone.
#
# It needs Python 3.11 or 3.12, and downloads about 3 GB. It ends with 1 if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check \
  diffusers==0.40.0 peft==0.21.2 safetensors==0.8.0 torch==2.13.0 transformers==5.10.4
"$folder/venv/bin/python" - <<'P'
import torch
from diffusers import FluxPipeline, SD3Transformer2DModel, StableDiffusion3Pipeline

model = SD3Transformer2DModel(
    sample_size=8, num_layers=1, attention_head_dim=8, num_attention_heads=2, caption_projection_dim=16,
    joint_attention_dim=16, pooled_projection_dim=16, pos_embed_max_size=8,
)
layer = "transformer.transformer_blocks.0.attn.to_q"
plain = {f"{layer}.lora_A.weight": torch.ones(2, 16), f"{layer}.lora_B.weight": torch.ones(16, 2)}
with_alpha = {**plain, f"{layer}.alpha": torch.tensor(4.0)}

_, alphas = FluxPipeline.lora_state_dict(dict(with_alpha), return_alphas=True)
print("Flux reads alpha:", {name: value.item() for name, value in alphas.items()})
assert alphas[f"{layer}.alpha"].item() == 4.0

pipeline = StableDiffusion3Pipeline(model, None, None, None, None, None, None, None, None)
pipeline.load_lora_weights(dict(plain))
print("Stable Diffusion 3 loads the file without alpha")
try:
    pipeline.load_lora_weights(dict(with_alpha), adapter_name="second")
except ValueError as error:
    print("Stable Diffusion 3 refuses the file with alpha:", error)
    assert "Invalid LoRA checkpoint" in str(error)
else:
    raise SystemExit("Stable Diffusion 3 loads a file with alpha now")
P

"""Empty: recipes name this module in `model.external_lib`. Diffusion-DPO of Qwen-Image is built in."""

"""Empty: recipes name this module in `model.external_lib`. Diffusion-DPO of Stable Diffusion 3 is built in."""

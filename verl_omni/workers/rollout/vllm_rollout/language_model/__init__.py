"""The autoregressive mode (`output_mode: ar`): differences in the server and the engine's worker."""

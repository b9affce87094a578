"""The autoregressive mode (`output_mode: ar`): what the server and the engine's worker do differently."""

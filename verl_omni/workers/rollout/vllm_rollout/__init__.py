"""The rollout on vLLM-Omni, one package for each process that its code runs in.

`driver`: the driver and the agent-loop workers. `training_worker`: the process of the trained model. `server`: the
replica's server process. `engine_worker`: the engine's worker processes. `language_model`: the server and engine-worker
code of the autoregressive mode. The modules here are import paths of verl-omni that re-export from those packages.
"""

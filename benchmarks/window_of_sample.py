"""An agent loop that places the SDE window of each sample separately: a module of the setting `model.external_lib`.

Samples of one prompt share a window by default; `sde_window.py` measures what happens if they do not.
"""

from typing import Any

from verl.experimental.agent_loop.agent_loop import register

from verl_omni.agent_loop import DiffusionAgentLoopOutput, DiffusionSingleTurnAgentLoop

NAME = "window_of_sample"


@register(NAME)
class WindowOfSample(DiffusionSingleTurnAgentLoop):
    """The seed of each sample's noise places its window too."""

    async def run(self, sampling_params: dict[str, Any], **kwargs: Any) -> DiffusionAgentLoopOutput:
        return await super().run({**sampling_params, "sde_window_seed": sampling_params["seed"]}, **kwargs)

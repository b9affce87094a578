"""Agent loop: generates and scores a sample for each row of a batch."""

from .diffusion_agent_loop import DiffusionAgentLoopOutput, DiffusionAgentLoopWorker
from .single_turn_agent_loop import DiffusionSingleTurnAgentLoop

__all__ = ["DiffusionAgentLoopOutput", "DiffusionAgentLoopWorker", "DiffusionSingleTurnAgentLoop"]

"""Pure tensor mathematics: SDE steps, advantages, losses."""

"""The trained model: transformer, LoRA, optimiser, checkpoints."""

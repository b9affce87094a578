"""The trained model: transformer, LoRA adapter, optimizer, checkpoints."""

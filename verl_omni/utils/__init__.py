"""Pixel formats, and LoRA adapters from memory for vLLM-Omni."""

"""The room that knows vLLM and vLLM-Omni."""

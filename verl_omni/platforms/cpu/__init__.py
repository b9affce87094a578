"""The CPU platform of vLLM, vLLM-Omni and verl."""

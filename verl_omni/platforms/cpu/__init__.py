"""The host CPU as a platform of vLLM, vLLM-Omni and verl."""

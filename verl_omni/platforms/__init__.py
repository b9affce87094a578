"""Platform plug-ins: the CPU as a platform of vLLM, vLLM-Omni and verl."""

"""Plug-ins that let the stack run on a host without an accelerator."""

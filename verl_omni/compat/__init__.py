"""Patches of upstream faults: one module each, called by name, refusing untested versions."""

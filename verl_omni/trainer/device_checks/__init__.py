"""Checks of a device with small models, for `drl doctor --gpu` and for the tests of an accelerator."""

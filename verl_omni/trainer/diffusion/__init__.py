"""Import paths of the reference's trainer, for modules of users (docs/from-verl-omni/switching.md)."""

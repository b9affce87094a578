"""The sections of `spec`, one module each: pydantic models, with the rules between their fields as CEL."""

"""One pass over a job: observe, decide, apply, write the status. Handlers call it, nothing else does."""

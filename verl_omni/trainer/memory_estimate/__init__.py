"""Memory estimate of a job, without its weights and without an accelerator: `drl fit`."""

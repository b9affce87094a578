"""The operator's process: kopf's watches, the queue of jobs, background tasks, HTTP."""

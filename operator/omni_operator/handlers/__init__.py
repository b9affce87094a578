"""The operator's process: kopf's handlers, watches of children, the queue of jobs, background tasks, HTTP."""

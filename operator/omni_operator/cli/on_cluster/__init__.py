"""Commands for jobs on a cluster: submit, watch, logs, fetch, open, why, suspend, resume and scale."""

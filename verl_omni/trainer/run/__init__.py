"""The run folder: checkpoints, resume, events, trackers, and reports to the operator."""

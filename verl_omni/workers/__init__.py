"""Code of Ray workers: the trained model and the rollout replicas."""

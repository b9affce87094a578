"""What runs inside Ray workers: the trained model and the rollout replicas."""

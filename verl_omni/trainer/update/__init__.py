"""One update of the policy from a batch of scored samples, or of preference pairs."""

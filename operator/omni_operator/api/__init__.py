"""What users write and read: the v1alpha1 models."""

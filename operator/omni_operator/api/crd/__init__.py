"""PURE: the CustomResourceDefinition, from the models of the job."""

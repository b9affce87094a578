"""Commands about this machine and what a job needs of it: doctor, fit and model."""

"""`drl run`: a job as a process of this machine, from its checks to the summary of its results."""

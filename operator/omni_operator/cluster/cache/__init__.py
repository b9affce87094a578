"""Jobs and their children as the watches deliver them, parsed, by job. Passes read nothing else."""

"""Weight updates, both ends: names, transfer, staging, checks and errors."""

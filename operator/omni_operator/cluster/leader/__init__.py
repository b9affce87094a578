"""One replica leads: election through a Lease, and a fence that stops writes of all others."""

"""Clusters without Docker: nodes are network namespaces of this machine. Needs Linux and root."""

"""Clusters of kind: nodes are containers of Docker, or of podman with a node image that is built here."""

"""Images of the operator and of training, built by Docker or by buildah from the ordinary Dockerfiles in `images/`."""

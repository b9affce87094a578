"""Errors of clusters, each with a message for the user."""


class ClusterError(Exception):
    """Base of every error of this package."""


class ToolMissing(ClusterError):
    """A program or a right that this machine has to offer is not there."""


class BuildFailed(ClusterError):
    """`go build` or the writing of an image failed."""


class CommandFailed(ClusterError):
    """A command ended with an error or passed its deadline."""


class ProcessEnded(ClusterError):
    """A daemon of the cluster ended although it should run."""


class DeadlinePassed(ClusterError):
    """A condition was not met within its deadline."""

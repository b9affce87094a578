"""`client_errors`: errors of vLLM-Omni that say that the sender of a request is at fault."""

from collections.abc import Iterator
from contextlib import contextmanager

from vllm_omni.errors import OmniClientError


@contextmanager
def client_errors() -> Iterator[None]:
    """Raise a ValueError of the block as vLLM-Omni's error of a client, which HTTP answers with status 400."""
    try:
        yield
    except OmniClientError:
        raise
    except ValueError as error:
        raise OmniClientError(str(error)) from error

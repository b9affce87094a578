"""A Ray of one test."""

from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def local_ray(cpus: int, gpus: int = 0) -> Iterator[None]:
    """Start Ray with logical resources; without the address, it joins the cluster of a test that runs now."""
    import ray

    ray.init(address="local", num_cpus=cpus, num_gpus=gpus, include_dashboard=False, log_to_driver=False)
    try:
        yield
    finally:
        ray.shutdown()

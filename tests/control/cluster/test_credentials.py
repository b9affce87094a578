"""Where the API server is, in a pod: by number, because the cluster's name service may not be up yet."""

from __future__ import annotations

import pytest

from omni_operator.cluster.credentials import in_pod_server


@pytest.mark.parametrize(
    ("host", "port", "expected"),
    [
        ("10.96.0.1", "443", "https://10.96.0.1:443"),
        ("10.96.0.1", None, "https://10.96.0.1:443"),
        ("fd00::1", "6443", "https://[fd00::1]:6443"),
    ],
)
def test_the_address_is_what_the_kubelet_says(host: str, port: str | None, expected: str) -> None:
    given = {"KUBERNETES_SERVICE_HOST": host, **({"KUBERNETES_SERVICE_PORT": port} if port else {})}
    assert in_pod_server(given) == expected

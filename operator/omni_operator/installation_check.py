"""What `helm test` runs in a pod: the operator answers its probes and serves its metrics.

python -m omni_operator.installation_check http://omni-omni-operator.omni-system.svc:8080
"""

import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Sequence

# a Service may need seconds to know a new pod
DEADLINE_S = 60.0
PAUSE_S = 2.0
REQUEST_S = 5.0
# Path -> what the answer contains.
EXPECTED = {"/healthz": "alive", "/readyz": "ready", "/metrics": "diffusionrl_operator_leader"}


def find_problem(url: str, path: str, words: str) -> str | None:
    """What is wrong with the answer to `GET url/path`; None if it has `words` and the status 200."""
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))  # never through a proxy of the cluster
    try:
        with opener.open(f"{url}{path}", timeout=REQUEST_S) as answer:
            text = answer.read().decode("utf-8", errors="replace")
    except urllib.error.HTTPError as error:
        with error:
            return f"status {error.code}: {error.read().decode('utf-8', errors='replace')[:200]}"
    except OSError as error:
        return f"no answer: {error}"
    return None if words in text else f"the answer does not contain {words!r}: {text[:200]!r}"


def check(url: str, deadline: float, clock: Callable[[], float], sleep: Callable[[float], None]) -> list[str]:
    """Problems that remain at the deadline; none once every path answered as expected."""
    while True:
        problems = [
            f"{url}{path}: {problem}" for path, words in EXPECTED.items() if (problem := find_problem(url, path, words))
        ]
        if not problems or clock() >= deadline:
            return problems
        sleep(PAUSE_S)


def main(arguments: Sequence[str] | None = None, deadline_s: float = DEADLINE_S) -> int:
    """Test one URL. Returns the exit code."""
    urls = sys.argv[1:] if arguments is None else list(arguments)
    if len(urls) != 1:
        sys.stderr.write("usage: python -m omni_operator.installation_check URL\n")
        return 2
    problems = check(urls[0].rstrip("/"), time.monotonic() + deadline_s, time.monotonic, time.sleep)
    for problem in problems:
        sys.stderr.write(f"{problem}\n")
    if problems:
        sys.stderr.write("the operator does not serve: read the log of its pod, and its events\n")
        return 1
    sys.stdout.write(f"the operator at {urls[0]} is alive and ready, and serves metrics\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())

#!/usr/bin/env bash
# Ray 2.60.0: a worker with a runtime environment imports Ray twice, in two programs that run one after the other.
#
# Behaviour: for an actor with `env_vars`, a raylet starts ray/_private/workers/setup_worker.py. It imports the whole
# package, its native library included, sets the variables, and replaces itself by bash and then by default_worker.py,
# which imports Ray again: about half a second of CPU time more for each worker. Without a runtime environment, the
# raylet starts default_worker.py at once.
#
# It needs Python 3.10 to 3.14, and downloads about 100 MB. It ends with 1 if this changes.
set -euo pipefail
folder=$(mktemp -d)
trap 'rm -rf "$folder"' EXIT
"${PYTHON:-python3}" -m venv "$folder/venv"
"$folder/venv/bin/pip" install --quiet --disable-pip-version-check ray==2.60.0
packages=$(echo "$folder"/venv/lib/python3*/site-packages)
echo "import importers" > "$packages/importers.pth"
cat > "$packages/importers.py" <<'P'
"""Writes a line for each process that imports Ray's native library: its program."""
import os
import sys


class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "ray._raylet":
            with open("/proc/self/cmdline") as command, open(os.environ["IMPORTERS"], "a") as lines:
                names = [part.rsplit("/", 1)[-1] for part in command.read().split(chr(0))]
                lines.write(next((name for name in names if name.endswith("_worker.py")), "") + chr(10))


sys.meta_path.insert(0, Finder())
P
IMPORTERS="$folder/importers" RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO=0 "$folder/venv/bin/python" - <<'P'
import os

import ray

ray.init(address="local", num_cpus=1, include_dashboard=False, log_to_driver=False)


@ray.remote
class Actor:
    def ready(self):
        return True


def importers():
    with open(os.environ["IMPORTERS"]) as lines:
        return [line.strip() for line in lines if line.strip()]


assert ray.get(Actor.remote().ready.remote(), timeout=60)
plain = importers()
assert ray.get(Actor.options(runtime_env={"env_vars": {"A": "1"}}).remote().ready.remote(), timeout=60)
with_variables = importers()[len(plain) :]
ray.shutdown()
print(f"imports of Ray without a runtime environment: {plain}; with env_vars: {with_variables}")
assert set(plain) == {"default_worker.py"}
assert with_variables.count("setup_worker.py") == 1 and "default_worker.py" in with_variables
P

"""PURE: YAML of rendered objects, in block style.

libyaml writes it: the pure Python writer of ruamel.yaml, which reads jobs because it keeps line numbers, took more time
than everything else that the operator does to create a job.
"""

import re
from typing import Any

import yaml
from typing_extensions import override

Object = dict[str, Any]
WIDTH = 4096
# PyYAML quotes what it would read as something else. These are booleans and numbers to kubectl or in YAML 1.2 alone.
_QUOTED = re.compile(
    r"[yYnN]|[-+]?(0[oO][0-7_]+|0[bB][01_]+|0[xX][0-9a-fA-F_]+"
    r"|([0-9][0-9_]*\.?[0-9_]*|\.[0-9_]+)([eE][-+]?[0-9_]+)?)"
)
# Line breaks in YAML 1.1 that are none in YAML 1.2: escaped in double quotes.
_BREAKS = re.compile("[\r\x85\u2028\u2029]")


def dump_yaml(*bodies: Object) -> str:
    """Format objects as YAML documents, which YAML 1.1 and 1.2 read alike."""
    return yaml.dump_all(
        bodies,
        Dumper=_Writer,
        width=WIDTH,
        explicit_start=len(bodies) > 1,
        sort_keys=False,
        allow_unicode=True,
        default_flow_style=False,
    )


class _Writer(yaml.CSafeDumper):
    """Without aliases of repeated parts; block style for strings of several lines."""

    @override
    def ignore_aliases(self, data: Any) -> bool:
        return True

    def represent_text(self, text: str) -> yaml.ScalarNode:
        style = '"' if _BREAKS.search(text) else "|" if "\n" in text else "'" if _QUOTED.fullmatch(text) else None
        return self.represent_scalar("tag:yaml.org,2002:str", text, style=style)

    yaml_representers = {**yaml.CSafeDumper.yaml_representers, str: represent_text}  # noqa: RUF012 - PyYAML's attribute

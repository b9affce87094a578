"""PURE: a job without the secrets in its pod templates, for the copy in the run folder, which the report shows."""

import re
from typing import Any

HIDDEN = "(hidden)"
_NAME = re.compile(r"(^|_)(TOKEN|KEY|SECRET|PASSWORD|PASSWD|CREDENTIAL)S?(_|$)", re.IGNORECASE)
_USER = re.compile(r"://[^/\s@]+@")  # user and password in a URL


def hide_values(document: Any) -> None:
    """Replace values of variables that are secrets by their names, or URLs with a password, in a job's document."""
    if isinstance(document, list):
        for item in document:
            hide_values(item)
    elif isinstance(document, dict):
        variables = document.get("env")
        for variable in variables if isinstance(variables, list) else ():
            if isinstance(variable, dict) and _is_secret(variable):
                variable["value"] = HIDDEN
        for inner in document.values():
            hide_values(inner)


def _is_secret(variable: dict[str, Any]) -> bool:
    name = variable.get("name")
    value = variable.get("value")
    return isinstance(name, str) and isinstance(value, str) and bool(_NAME.search(name) or _USER.search(value))

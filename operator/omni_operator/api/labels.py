"""PURE: syntax of labels and annotations, as the API server checks it."""

import re
from collections.abc import Iterator, Mapping

from .base import Violation

_LABEL = r"[A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?"
DOMAIN = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
_KEY = re.compile(rf"((?P<domain>{DOMAIN})/)?{_LABEL}")
_VALUE = re.compile(rf"({_LABEL})?")
DOMAIN_LIMIT = 253
ANNOTATIONS_BYTES = 256 * 1024


def find_bad_labels(labels: Mapping[str, str]) -> Iterator[Violation]:
    """Labels that the API server would refuse."""
    for key, value in labels.items():
        if not is_key(key):
            yield Violation((key,), f"{key!r} is not the key of a label, such as team or example.com/team")
        elif not _VALUE.fullmatch(value):
            yield Violation((key,), f"{value!r} is not the value of a label: at most 63 letters, digits, '-', '_', '.'")


def find_bad_annotations(annotations: Mapping[str, str]) -> Iterator[Violation]:
    """Annotations that the API server would refuse; capital letters count as small ones."""
    for key in annotations:
        if not is_key(key.lower()):
            yield Violation((key,), f"{key!r} is not the key of an annotation, such as team or example.com/team")
    size = sum(len(text.encode(errors="surrogatepass")) for entry in annotations.items() for text in entry)
    if size > ANNOTATIONS_BYTES:
        yield Violation((), f"take {size} bytes with their keys: at most {ANNOTATIONS_BYTES}")


def is_key(key: str) -> bool:
    """Whether a text is a valid label key, with or without a domain. Finalizer names have the same form."""
    match = _KEY.fullmatch(key)
    return match is not None and len(match["domain"] or "") <= DOMAIN_LIMIT

"""Values for the fields of a job's metadata, right and wrong ones, of which random documents have some."""

from __future__ import annotations

from typing import Any

from e2e.random_documents import Documents

OWNER = {"apiVersion": "v1", "kind": "ConfigMap", "name": "a", "uid": "u"}
MANAGER = {
    "manager": "a",
    "operation": "Update",
    "apiVersion": "diffusionrl.io/v1alpha1",
    "fieldsType": "FieldsV1",
    "fieldsV1": {},
}
TIMES: list[Any] = [
    "2026-01-01T00:00:00Z",
    "2026-01-01T00:00:00.25+02:00",
    None,
    "yesterday",
    "2026-01-01",
    "2026-13-01T00:00:00Z",
    "",
    1,
]
WHOLE: list[Any] = [3, 3.0, -1, 1.5, "3", 2**63, -(2**63), True, None]
TEXTS: list[Any] = ["u", "", 1, True, {}, None]
LISTS: list[Any] = [[], None, "a", {}]
KEYS = [
    "a",
    "a b",
    "a/b/c",
    "a.b/c",
    "A_.x",
    "X.y/a",
    "-",
    "a" * 63,
    "a" * 64,
    "a" * 253 + "/b",
    "a" * 254 + "/b",
    "",
    "/a",
    "a/",
    "a..b/c",
    "-a/c",
    "ä",
    "a\n",
    "K",
]
VALUES: list[Any] = ["b", "", "d e", 1, None, "-", "b" * 63, "b" * 64, "ä", "b\n", {}, True, "\ud800"]


def _owner(**changes: Any) -> dict[str, Any]:
    """An owner with changes; `...` removes a field."""
    return {name: value for name, value in {**OWNER, **changes}.items() if value is not ...}


FIELDS: dict[str, list[Any]] = {
    # Without a name a document differs: `drl` needs one, and the API server makes one of generateName.
    "name": ["a", "a" * 43, "a" * 44, "a.b", "1a", "a-", "A", "a\n", "", 1, True, {}],
    "generateName": ["a-", "a.b-", "", "A b", "-", "A-", "a" * 254, 1, None],
    # No other valid namespace: the API server would reject one that does not exist.
    "namespace": ["default", "", None, "A b", "-a", "a" * 64, 1],
    "uid": TEXTS,
    "selfLink": TEXTS,
    "resourceVersion": TEXTS,
    "generation": WHOLE,
    "deletionGracePeriodSeconds": WHOLE,
    "creationTimestamp": TIMES,
    "deletionTimestamp": TIMES,
    "labels": [*LISTS, *({key: "b"} for key in KEYS), *({"a": value} for value in VALUES if value != "\ud800")],
    "annotations": [
        *LISTS,
        *({key: "b"} for key in KEYS),
        *({"a": value} for value in VALUES),
        {"a": "x" * (2**18 - 1)},
        {"a": "x" * 2**18},
        {"a": "ä" * 2**17},
    ],
    "finalizers": [
        *LISTS,
        *([key] for key in KEYS),
        [None],
        [1],
        ["a.b/c", "a.b/c"],
        ["orphan"],
        ["orphan", "foregroundDeletion"],
    ],
    "ownerReferences": [
        *LISTS,
        [_owner()],
        [_owner(), _owner()],
        [None],
        [_owner(controller=True), _owner(uid="v", controller=True)],
        *([_owner(**{name: value})] for name in OWNER for value in (..., "", 1, None, "a/b")),
        [_owner(controller="true")],
        [_owner(controller=None, blockOwnerDeletion=True)],
        [_owner(kind="Event")],
        [_owner(kind="Event", apiVersion="events.k8s.io/v1")],
        [_owner(apiVersion="a/b/c")],
        [_owner(apiVersion="/v1")],
        [_owner(apiVersion="/")],
        [_owner(unknown=None)],
    ],
    "managedFields": [
        *LISTS,
        [{}],
        [None],
        [MANAGER],
        [{"operation": "X"}],
        [{**MANAGER, "time": "x"}],
        [{**MANAGER, "manager": 1}],
        [{**MANAGER, "unknown": 1}],
        [{**MANAGER, "fieldsV1": None, "fieldsType": "X"}],
    ],
    "unknown": [1, None],
    "Labels": [{}],
}


def change(metadata: dict[str, Any], documents: Documents) -> None:
    """Set one field of the metadata."""
    name = documents.pick(list(FIELDS))
    metadata[name] = documents.pick(FIELDS[name])

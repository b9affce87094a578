"""Writer of Kubernetes Events about jobs."""

import hashlib
import logging
from dataclasses import dataclass
from datetime import datetime

from omni_operator.api.names import MANAGER
from omni_operator.status.report.events import Event

from .errors import AlreadyExists, ClusterError, NamespaceTerminating
from .kinds import Body
from .protocol import Cluster, object_reference

NOTE_BYTES = 1024  # the API server's limit
log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EventWriter:
    """Creates events; `instance` is the name of this process."""

    cluster: Cluster
    instance: str

    async def create(self, body: Body, event: Event, now: datetime) -> None:
        """Create an event about a job. Its name is a hash of its key, so a repeated pass creates it once."""
        about = object_reference(body)
        name = hashlib.sha256(f"{about['uid']}/{event.key}".encode()).hexdigest()[:16]
        event_body = {
            "apiVersion": "events.k8s.io/v1",
            "kind": "Event",
            "metadata": {"name": f"{about['name']}.{name}", "namespace": about["namespace"]},
            "eventTime": now.strftime("%Y-%m-%dT%H:%M:%S.%fZ"),
            "reportingController": MANAGER,
            "reportingInstance": self.instance,
            "action": "Reconcile",
            "type": event.kind,
            "reason": event.reason,
            "note": event.note.encode("utf-8", "replace")[:NOTE_BYTES].decode("utf-8", "ignore"),
            "regarding": about,
        }
        try:
            await self.cluster.create(event_body)
        except (AlreadyExists, NamespaceTerminating):  # an event would go with its namespace
            return
        except ClusterError as error:
            # Events expire anyway, and the status has the same information.
            log.warning("%s/%s: event %s not created: %s", about["namespace"], about["name"], event.reason, error)

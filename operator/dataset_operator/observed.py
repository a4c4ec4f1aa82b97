"""What a pass has seen: the experiment and its children as they are, nothing decided yet.

`observe` (with clients) makes these values, `plan` reads them; tests write them down.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal

from dataset_operator.api import HEAD, Role
from dataset_operator.names import Owner

Document = dict[str, Any]
JobStatus = Literal["PENDING", "RUNNING", "STOPPED", "SUCCEEDED", "FAILED"]
TIME_FORMAT = "%Y-%m-%dT%H:%M:%SZ"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of the cluster; `waiting` says in words what it waits for, if it does."""

    name: str
    uid: str
    role: Role
    ready: bool
    waiting: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """An attempt's job as Ray knows it; `exit_code` is the driver's, once it ended by itself."""

    status: JobStatus
    message: str = ""
    exit_code: int | None = None
    out_of_memory: bool = False

    @property
    def is_active(self) -> bool:
        """Whether its driver may be running."""
        return self.status in ("PENDING", "RUNNING")


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """One look at everything that belongs to an experiment.

    Attributes:
        document: the experiment, as the API server has it.
        accepted: the experiment of the present run as it was accepted, from its ConfigMap; None if
            there is no run, or the ConfigMap is gone.
        ray_reachable: whether the head's Jobs API answered.
        job: the job of the attempt in status; None if Ray does not know it, or was not reached.
    """

    document: Mapping[str, Any]
    accepted: Mapping[str, Any] | None = None
    ray_cluster: Mapping[str, Any] | None = None
    has_token: bool = False
    pods: tuple[Pod, ...] = ()
    ray_reachable: bool = False
    job: Job | None = None
    missing_children: frozenset[str] = field(default_factory=frozenset)  # names of our own

    @property
    def owner(self) -> Owner:
        """The experiment as the owner of its children."""
        metadata = self.document["metadata"]
        return Owner(name=metadata["name"], namespace=metadata["namespace"], uid=metadata["uid"])

    @property
    def generation(self) -> int:
        """The spec's generation."""
        return int(self.document["metadata"].get("generation", 0))

    @property
    def deleted_at(self) -> datetime | None:
        """When its deletion was asked for."""
        text = self.document["metadata"].get("deletionTimestamp")
        return parse_time(text) if text else None

    @property
    def status(self) -> Mapping[str, Any]:
        """What earlier passes wrote down."""
        return self.document.get("status") or {}

    @property
    def head(self) -> Pod | None:
        """The head's pod."""
        return next((pod for pod in self.pods if pod.role == HEAD), None)

    def ready(self, role: Role) -> int:
        """Pods of a role that are ready."""
        return sum(pod.ready for pod in self.pods if pod.role == role)


def parse_time(text: str) -> datetime:
    """A time as Kubernetes writes it."""
    return datetime.fromisoformat(text)


def format_time(moment: datetime) -> str:
    """A time as Kubernetes writes it, in UTC and whole seconds."""
    return moment.strftime(TIME_FORMAT)

"""Values that a reconcile pass decides: single actions and events, and the whole decision."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from dataset_operator.autoscaling.inference import InferenceMemory
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.documents import Document
from dataset_operator.sealing import Seal
from pipeline_runtime.config import ExperimentStatus


@dataclass(frozen=True, slots=True)
class Create:
    """Create an object, which is never changed afterwards."""

    document: Document


@dataclass(frozen=True, slots=True)
class Apply:
    """Apply an object server-side."""

    document: Document


@dataclass(frozen=True, slots=True)
class Patch:
    """Change an owned object by a merge patch with the observed resourceVersion."""

    kind: str
    name: str
    patch: Document


@dataclass(frozen=True, slots=True)
class Delete:
    """Delete an owned object."""

    kind: str
    name: str


@dataclass(frozen=True, slots=True)
class DeleteSelf:
    """Delete the experiment."""


@dataclass(frozen=True, slots=True)
class Trial:
    """Have the API server check a RayCluster by a dry run, before anything else is done."""

    document: Document


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit the driver; it is done if Ray already knows the id."""

    submission_id: str
    experiment: Document  # the manifest that the driver runs
    run_id: str  # identifies the run; its checkpoints are stored under it
    resume: bool  # from the last checkpoint of the run, if there is one
    storage_root: str | None = None  # base of URIs without a scheme, fixed when the run began


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask the driver to write a checkpoint and end."""

    submission_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Stop Ray from giving workers more work; it is done if Ray already knows the id.

    Attributes:
        submission_id: the prefix of the ids of the draining jobs.
        addresses: IP addresses of the workers' pods.
    """

    submission_id: str
    addresses: tuple[str, ...]
    deadline_seconds: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLog:
    """Write decisions of the autoscaler into the run's folder; repeating it changes nothing.

    Attributes:
        artifacts_uri: the experiment's folder; the run's folder below it is found by `run_id`.
    """

    submission_id: str
    artifacts_uri: str
    run_id: str
    decisions: tuple[Document, ...]


Action = Create | Apply | Patch | Delete | DeleteSelf | Trial | Submit | Stop | Drain | KeepLog


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """An event for `kubectl describe`, emitted once, after the status that reports it.

    Attributes:
        is_logged: True if the operator's log reports it too, for whoever runs the operator.
        is_outcome: True if it holds only once the decision has been carried out.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    is_logged: bool = False
    is_outcome: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Everything that one reconcile pass decided; the executor carries it out in field order.

    Attributes:
        status: the whole wanted status; written only if it differs.
        has_finalizer: True if the experiment should have the finaliser.
        create: objects that are created once and never changed.
        apply: objects that are applied server-side.
        patches: (kind, name, merge patch with the observed resourceVersion) of owned objects.
        trial: a RayCluster for the API server to check by a dry run before anything else is done.
        drains: workers to drain, of one group each.
        log: decisions of the autoscaler to store.
        memory: the new memory of the autoscaling policy; None: unchanged.
        inference: new memories of the policy of inference workers, by the name of their group.
        delete: (kind, name) of objects to delete.
        again_seconds: time until the next pass without an event; None: no such pass.
    """

    status: ExperimentStatus
    has_finalizer: bool
    create: tuple[Document, ...] = ()
    apply: tuple[Document, ...] = ()
    patches: tuple[tuple[str, str, Document], ...] = ()
    trial: Document | None = None
    job: Submit | Stop | None = None
    drains: tuple[Drain, ...] = ()
    log: KeepLog | None = None
    memory: Memory | None = None
    inference: Mapping[str, InferenceMemory] = field(default_factory=dict)
    delete: tuple[tuple[str, str], ...] = ()
    delete_self: bool = False
    events: tuple[Event, ...] = ()
    again_seconds: float | None = None

    def seal(self, seal: Seal) -> Decision:
        """Return a copy with a seal on every object whose content the operator reads back."""
        create, apply = (tuple(map(seal.stamp, written)) for written in (self.create, self.apply))
        return replace(self, create=create, apply=apply)

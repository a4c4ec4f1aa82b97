"""What a pass wants done, as values; the executor does it in the order of the fields."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Literal

from dataset_operator.autoscaling.history import Memory
from dataset_operator.sealing import Seal

Document = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Submit:
    """Submit the driver; that Ray already knows the id counts as done."""

    submission_id: str
    experiment: Document  # what the driver runs
    run_id: str  # of its run: its checkpoints are found by it
    resume: bool  # from the last checkpoint of its run, if there is one
    storage_root: str | None = None  # where its URIs without a scheme start, as its run began


@dataclass(frozen=True, slots=True, kw_only=True)
class Stop:
    """Ask the driver to write a checkpoint and end."""

    submission_id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Drain:
    """Have Ray give data workers no more work; that Ray already knows the id counts as done.

    Attributes:
        submission_id: what the ids of its jobs begin with.
        addresses: of their pods.
    """

    submission_id: str
    addresses: tuple[str, ...]
    deadline_seconds: int
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepLog:
    """Write decisions of the autoscaler into the run's folder; again it changes nothing.

    Attributes:
        artifacts_uri: of the experiment's folder; that of the run is below it, found by `run_id`.
    """

    submission_id: str
    artifacts_uri: str
    run_id: str
    decisions: tuple[Document, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Event:
    """Something that happened, for `kubectl describe`; told once, with the status that says it.

    Attributes:
        is_logged: whether the operator's log has it too, since who runs the operator has to act.
        is_outcome: whether it is true only once the pass has done what it wants done.
    """

    type: Literal["Normal", "Warning"]
    reason: str
    message: str
    is_logged: bool = False
    is_outcome: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """One pass.

    Attributes:
        status: the whole status as it should be; written only if it differs.
        has_finalizer: whether the finaliser should be there.
        create: children that are created once and never applied over.
        apply: children that are applied server-side.
        patches: (kind, name, merge patch with the observed resourceVersion) of children.
        trial: a RayCluster to be judged by a dry run before any of this is done.
        drain: data workers that are to go.
        log: decisions that are to be kept.
        memory: what the law of scaling remembers from here on; None: as before.
        delete: children by (kind, name).
        again_seconds: when to look again without an event; None: not at all.
    """

    status: Document
    has_finalizer: bool
    create: tuple[Document, ...] = ()
    apply: tuple[Document, ...] = ()
    patches: tuple[tuple[str, str, Document], ...] = ()
    trial: Document | None = None
    job: Submit | Stop | None = None
    drain: Drain | None = None
    log: KeepLog | None = None
    memory: Memory | None = None
    delete: tuple[tuple[str, str], ...] = ()
    delete_self: bool = False
    events: tuple[Event, ...] = ()
    again_seconds: float | None = None

    def seal(self, seal: Seal) -> Decision:
        """The same, with a seal on every object whose content is read back."""
        create, apply = (tuple(map(seal.stamp, written)) for written in (self.create, self.apply))
        return replace(self, create=create, apply=apply)

"""An adapter for rules that still change a draft instead of returning a verdict.

It goes once every rule returns a verdict.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from dataset_operator.api import SCALING_ACTIVE, SCALING_LIMITED
from dataset_operator.autoscaling.intervals import Memory
from dataset_operator.builders.children import build_service_account
from dataset_operator.documents import Document
from dataset_operator.names import Owner
from dataset_operator.observed import Observed
from dataset_operator.plan.outcome import (
    Action,
    Apply,
    Create,
    Delete,
    DeleteSelf,
    Drain,
    Event,
    KeepLog,
    Patch,
    Stop,
    Submit,
    Trial,
)
from dataset_operator.plan.situation import Situation
from dataset_operator.plan.verdict import Judged, Verdict, record_event, set_condition
from dataset_operator.readings import Reading
from dataset_operator.settings import OperatorSettings
from dataset_operator.status import find_condition
from pipeline_runtime.config import DatasetExperiment, ExperimentSpec, ExperimentStatus


@dataclass(slots=True, kw_only=True)
class Draft:
    """The mutable form of a situation."""

    base: Situation
    status: Document = field(init=False)
    has_finalizer: bool = field(init=False)
    experiment: DatasetExperiment | None = None
    spec: ExperimentSpec | None = None
    create: list[Document] = field(default_factory=list)
    apply: list[Document] = field(default_factory=list)
    patches: list[tuple[str, str, Document]] = field(default_factory=list)
    trial: Document | None = None
    delete: list[tuple[str, str]] = field(default_factory=list)
    delete_self: bool = False
    job: Submit | Stop | None = None
    drain: Drain | None = None
    log: KeepLog | None = None
    memory: Memory | None = None
    events: list[Event] = field(default_factory=list)
    again: list[float] = field(default_factory=list)
    not_corrected: str = ""
    is_scaling_requested: bool = False

    def __post_init__(self) -> None:
        self._load(self.base)

    # --- between the two forms ------------------------------------------------------------------

    def _load(self, situation: Situation) -> None:
        self.base = situation
        self.status = situation.status.to_document()
        self.has_finalizer = situation.has_finalizer
        self.experiment, self.spec = situation.judged.experiment, situation.judged.spec
        self.create = [a.document for a in situation.actions if isinstance(a, Create)]
        self.apply = [a.document for a in situation.actions if isinstance(a, Apply)]
        patches = [a for a in situation.actions if isinstance(a, Patch)]
        self.patches = [(a.kind, a.name, a.patch) for a in patches]
        self.delete = [(a.kind, a.name) for a in situation.actions if isinstance(a, Delete)]
        self.delete_self = situation.will(DeleteSelf)
        for action in situation.actions:
            match action:
                case Trial():
                    self.trial = action.document
                case Submit() | Stop():
                    self.job = action
                case Drain():
                    self.drain = action
                case KeepLog():
                    self.log = action
        self.memory = situation.memory
        self.events = list(situation.events)
        self.again = [] if situation.again_seconds is None else [situation.again_seconds]

    @property
    def situation(self) -> Situation:
        """The present state as a value."""
        actions: list[Action] = [
            *map(Create, self.create),
            *map(Apply, self.apply),
            *(Patch(*patch) for patch in self.patches),
            *(Delete(*deleted) for deleted in self.delete),
            *([DeleteSelf()] if self.delete_self else []),
            *([Trial(self.trial)] if self.trial is not None else []),
            *(action for action in (self.job, self.drain, self.log) if action is not None),
        ]
        return replace(
            self.base,
            status=ExperimentStatus.model_validate(_freeze(self.status)),
            has_finalizer=self.has_finalizer,
            judged=Judged(experiment=self.experiment, spec=self.spec),
            actions=tuple(actions),
            events=tuple(self.events),
            again_seconds=min(self.again, default=None),
            memory=self.memory,
        )

    @property
    def _judged(self) -> Situation:
        return replace(self.base, judged=Judged(experiment=self.experiment, spec=self.spec))

    def take(self, verdict: Verdict | None) -> bool:
        """Take in the verdict of a rule; return whether it ends the pass."""
        if verdict is None:
            return False
        self._load(self.situation.after(verdict))
        return verdict.ends

    # --- the observed state ---------------------------------------------------------------------

    @property
    def observed(self) -> Observed:
        return self.base.observed

    @property
    def settings(self) -> OperatorSettings:
        return self.base.settings

    @property
    def token(self) -> str:
        return self.base.observed.fresh_token

    @property
    def now(self) -> datetime:
        return self.base.now

    @property
    def owner(self) -> Owner:
        return self.base.owner

    @property
    def running(self) -> DatasetExperiment:
        return self._judged.running

    @property
    def is_writing(self) -> bool:
        return self._judged.is_writing

    @property
    def work(self) -> str:
        return self._judged.work

    @property
    def wanted(self) -> ExperimentSpec:
        return self._judged.wanted

    @property
    def is_run_changed(self) -> bool:
        return self._judged.is_run_changed

    @property
    def on_cluster(self) -> DatasetExperiment:
        return self._judged.on_cluster

    @property
    def is_rank_count_wrong(self) -> bool:
        return self._judged.is_rank_count_wrong

    @property
    def cluster_spec(self) -> ExperimentSpec:
        return self._judged.cluster_spec

    @property
    def is_cluster_changed(self) -> bool:
        return self._judged.is_cluster_changed

    @property
    def submission(self) -> Document | None:
        submission: Document | None = self.status.get("submission")
        return submission

    @property
    def attempt(self) -> int:
        return int(self.status.get("attempt", 0))

    @property
    def failures(self) -> int:
        return int(self.status.get("failures", 0))

    def is_true(self, kind: str) -> bool:
        condition = find_condition(self.status, kind)
        return condition is not None and condition["status"] == "True"

    def reason(self, kind: str) -> str | None:
        condition = find_condition(self.status, kind)
        return condition["reason"] if condition else None

    @property
    def accepted(self) -> Reading | None:
        return self.base.specs.accepted

    def read_again(self, spec: ExperimentSpec) -> Reading:
        return self.base.specs.read_again(spec)

    # --- the wanted state -----------------------------------------------------------------------

    def build_config(self) -> Document:
        document = self.observed.document
        return {
            "apiVersion": document["apiVersion"],
            "kind": document["kind"],
            "metadata": {"name": self.owner.name},
            "spec": self.read_again(self.running.spec).spec_document,
        }

    def condition(
        self,
        kind: str,
        status: bool | None,
        reason: str,
        message: str,
        *,
        warns: bool = False,
        tells: bool = True,
    ) -> None:
        self.take(set_condition(kind, status, reason, message, warns=warns, is_recorded=tells))

    def tell(
        self,
        reason: str,
        message: str,
        *,
        warns: bool = False,
        logs: bool = False,
        is_outcome: bool = False,
    ) -> None:
        self.take(record_event(reason, message, warns=warns, is_logged=logs, is_outcome=is_outcome))

    def clear(self, *kinds: str) -> None:
        kept = [c for c in self.status.get("conditions", ()) if c["type"] not in kinds]
        self.status["conditions"] = kept

    def forget(self, *fields: str) -> None:
        for name in fields:
            self.status.pop(name, None)

    def find_missing_account(self) -> list[Document]:
        is_named = self.settings.service_account is not None
        if is_named or self.owner.service_account in self.observed.children:
            return []
        return [build_service_account(self.owner)]

    def look_again(self, seconds: float) -> None:
        self.again.append(max(0.0, seconds))

    def until(self, start: datetime, seconds: float) -> float:
        return self.base.until(start, seconds)

    def stamp(self) -> str:
        return self.base.stamp

    def release_cluster(self, *, deletes: bool = True) -> None:
        if deletes and self.observed.ray_cluster is not None:
            self.delete.append(("RayCluster", self.owner.ray_cluster))
        self.forget("rayClusterName", "gpus", "unreachableTime")
        self.clear(SCALING_ACTIVE, SCALING_LIMITED)
        self.forget_drain()
        if workers := self.status.get("dataWorkers"):
            self.status["dataWorkers"] = {**workers, "currentReplicas": 0, "readyReplicas": 0}

    def forget_drain(self) -> None:
        workers = dict(self.status.get("dataWorkers") or {})
        if workers.pop("draining", None) is None:
            return
        staying = workers.pop("drainingTo", None)
        known = {} if staying is None else {"desiredReplicas": staying}
        self.status["dataWorkers"] = {**workers, **known}


def _freeze(value: Any) -> Any:
    """Return lists as tuples, which the models ask for."""
    if isinstance(value, dict):
        return {name: _freeze(below) for name, below in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str):
        return tuple(map(_freeze, value))
    return value
